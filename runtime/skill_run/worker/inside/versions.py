"""The releases of Megatron that the CPU layer was proved on: its patches name private things, so no other is used."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Final, NamedTuple

from skill_run.worker.inside.errors import RefusedError


class Releases(NamedTuple):
    """Versions of Megatron-Core and of Megatron-Bridge, None where there is no Bridge."""

    core: str
    bridge: str | None


KNOWN: Final = (
    Releases("0.19.2", "0.6.2"),
    Releases("0.18.0", "0.5.1"),
    Releases("0.17.0", "0.4.2"),
    Releases("0.16.1", "0.3.1"),
    Releases("0.16.1", None),
)
_PART: Final = re.compile(r"^(MAJOR|MINOR|PATCH) *= *(\d+)$", re.MULTILINE)


def found_releases() -> Releases:
    """Return the releases that this interpreter would import, read from their files without importing them.

    Raises RefusedError ("missing") when there is no Megatron-Core.
    """
    core = _release("megatron.core")
    if core is None:
        raise RefusedError("the worker's environment has no megatron-core", "missing")
    return Releases(core, _release("megatron.bridge"))


def require_known_releases() -> Releases:
    """Return the releases found; raises RefusedError ("missing") for a pair that the CPU layer does not know."""
    found = found_releases()
    if found in KNOWN:
        return found
    known = ", ".join(_words(pair) for pair in KNOWN)
    raise RefusedError(
        f"the CPU layer does not know {_words(found)}; it was proved on {known}, and its patches name private parts "
        "of these releases",
        "missing",
    )


def _words(pair: Releases) -> str:
    bridge = "no megatron-bridge" if pair.bridge is None else f"megatron-bridge {pair.bridge}"
    return f"megatron-core {pair.core} with {bridge}"


def _release(package: str) -> str | None:
    """Return the version in the package's `package_info.py`, or None when there is no such package."""
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(next(iter(spec.submodule_search_locations))) / "package_info.py"
    if not path.is_file():
        return None
    parts = dict(_PART.findall(path.read_text(encoding="utf-8")))
    return ".".join(parts.get(name, "0") for name in ("MAJOR", "MINOR", "PATCH"))
