"""The known failures, as data: what a line of a log looks like, what it means and what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

import yaml

KINDS: Final = ("error", "warning", "cascade", "symptom", "notice")
_UNITS: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_SIZE: Final = re.compile(r"([\d.]{1,20}) ([KMGT]?)i?B")


@dataclass(frozen=True, slots=True)
class Signature:
    """A known failure; the fields are those that signatures.yaml explains at its top."""

    id: str
    title: str
    kind: str
    pattern: re.Pattern[str]
    cause: str
    fix: str
    sample: str
    engine: re.Pattern[str] | None = None
    exit: tuple[int, ...] = ()
    found: str = ""
    at_least: tuple[str, str] | None = None

    def match(self, line: str) -> Mapping[str, str] | None:
        """Return what the named groups caught when the line shows this failure, else None."""
        found = self.pattern.search(line)
        if found is None:
            return None
        caught = {name: value for name, value in found.groupdict().items() if value is not None}
        if self.at_least is not None:
            larger, smaller = (_size(caught.get(name, "")) for name in self.at_least)
            if larger < smaller:
                return None
        return caught

    def told(self, caught: Mapping[str, str]) -> str:
        """Return the sentence about what was caught; empty when something of it was not there."""
        names = re.findall(r"\{(\w+)\}", self.found)
        return self.found.format_map(caught) if names and all(name in caught for name in names) else ""


@cache
def signatures() -> tuple[Signature, ...]:
    """Return all known failures in the order in which they are tried."""
    text = resources.files("skill_run.jobs").joinpath("signatures.yaml").read_text(encoding="utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return tuple(_signature(told) for told in yaml.load(text, Loader=loader))


def _signature(told: dict[str, Any]) -> Signature:
    engine = told.pop("engine", None)
    at_least = told.pop("at_least", None)
    return Signature(
        pattern=re.compile(told.pop("pattern")),
        engine=None if engine is None else re.compile(engine),
        exit=tuple(told.pop("exit", ())),
        at_least=None if at_least is None else (at_least[0], at_least[1]),
        **told,
    )


def _size(text: str) -> float:
    """Return bytes; 0 for what is no size."""
    found = _SIZE.fullmatch(text)
    try:
        return 0.0 if found is None else float(found[1]) * 1024.0 ** _UNITS[found[2]]
    except ValueError:
        return 0.0
