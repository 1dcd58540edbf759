"""The workers that can be built: what each is for, the Python it needs, and its pinned, hashed files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from skill_run.errors import InputError

LOCKS: Final = Path(__file__).parent / "locks"
_PIN: Final = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+) --hash=sha256:(?P<digest>[0-9a-f]{64})"
    r"  # bytes=(?P<size>\d+)(?P<source> source)?"
)


@dataclass(frozen=True, slots=True)
class Pin:
    """One file of a lock. size: bytes to download; source: it is built here, since the release has no wheel."""

    name: str
    version: str
    digest: str
    size: int
    source: bool = False

    @property
    def line(self) -> str:
        """The pin as a line of a requirements file."""
        return f"{self.name}=={self.version} --hash=sha256:{self.digest}"

    @property
    def key(self) -> str:
        """The distribution's name in its normal form."""
        return re.sub(r"[-_.]+", "-", self.name).lower()


@dataclass(frozen=True)
class Lock:
    """Every file of a worker. build: of torch, `cpu` or `cuda-build`; disk_mb: what it takes when installed."""

    build: str
    pins: tuple[Pin, ...]
    disk_mb: int
    minutes: int

    @property
    def download_mb(self) -> int:
        """Size of all files in MB."""
        return round(sum(pin.size for pin in self.pins) / 1e6)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over every pin: two locks with the same one install the same files."""
        return hashlib.sha256("\n".join(sorted(pin.line for pin in self.pins)).encode("ascii")).hexdigest()


@dataclass(frozen=True)
class Kind:
    """A worker that can be built. python: such as "3.11"; locks: by build of torch, the preferred first."""

    name: str
    purpose: str
    python: str
    locks: Mapping[str, Lock]

    def to_dict(self) -> dict[str, Any]:
        """Return what a user chooses by, as JSON-ready data."""
        builds = {
            build: {"download_mb": lock.download_mb, "disk_mb": lock.disk_mb, "minutes": lock.minutes}
            for build, lock in self.locks.items()
        }
        return {"name": self.name, "purpose": self.purpose, "python": self.python, "torch": builds}


def list_kinds() -> dict[str, Kind]:
    """Return every kind by name, the default first."""
    import yaml

    data = yaml.safe_load((LOCKS / "workers.yaml").read_text(encoding="utf-8"))
    return {name: _kind(name, facts) for name, facts in data.items()}


def find_kind(name: str | None) -> Kind:
    """Return the kind called `name`, or the default one; InputError for an unknown name."""
    kinds = list_kinds()
    if name is None:
        return next(iter(kinds.values()))
    if name not in kinds:
        raise InputError(f"there is no kind of worker {name!r}; there are {' and '.join(kinds)}")
    return kinds[name]


def parse_lock(text: str) -> tuple[Pin, ...]:
    """Return the pins of a lock file's text; ValueError names a line that is none."""
    found = []
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            continue
        pin = _PIN.fullmatch(line.rstrip())
        if pin is None:
            raise ValueError(f"not a pin: {line}")
        found.append(Pin(pin["name"], pin["version"], pin["digest"], int(pin["size"]), bool(pin["source"])))
    return tuple(found)


def _kind(name: str, facts: dict[str, Any]) -> Kind:
    locks = {
        build: Lock(
            build,
            parse_lock((LOCKS / file).read_text(encoding="utf-8")),
            facts["disk_mb"][build],
            facts["minutes"][build],
        )
        for build, file in facts["locks"].items()
    }
    return Kind(name, facts["purpose"], facts["python"], locks)
