"""What a migration says: the new text, what was changed and why, and what is left to a person."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from skill_run.config.model import Plain
from skill_run.report.finding import ValidationReport


@dataclass(frozen=True, slots=True)
class Build:
    """A config object to be written: a mapping with `_target_` in a file, a call in Python."""

    cls: str
    values: Mapping[str, Plain | Build]


@dataclass(frozen=True, slots=True)
class Symbol:
    """A function named by its dotted path: a mapping with `_call_: false` in a file, an imported name in Python."""

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class Opaque:
    """A value that only the user's code knows; `text` is how it is written there."""

    text: str = ""


Held = Plain | Build | Symbol | Opaque


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that was changed. what: old and new in the user's words; why: one clause; line: of the input."""

    what: str
    why: str
    line: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the change as JSON-ready data."""
        return {"what": self.what, "why": self.why, "line": self.line}


@dataclass(frozen=True, slots=True)
class Manual:
    """One thing that could not be moved safely. reason: why not; do: what the user should do; line: of the input."""

    what: str
    reason: str
    do: str
    line: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the item as JSON-ready data."""
        return {"what": self.what, "reason": self.reason, "do": self.do, "line": self.line}


@dataclass(frozen=True, slots=True)
class Difference:
    """A canonical field whose value is not the same before and after; `why` is empty when no step explains it."""

    field: str
    before: Plain
    after: Plain
    why: str

    def to_dict(self) -> dict[str, Any]:
        """Return the difference as JSON-ready data."""
        return {"field": self.field, "before": self.before, "after": self.after, "why": self.why}


@dataclass(slots=True)
class Notes:
    """Changes and manual items as they are collected."""

    changes: list[Change] = field(default_factory=list)
    manual: list[Manual] = field(default_factory=list)

    def changed(self, what: str, why: str, line: int | None = None) -> None:
        """Note a change once."""
        change = Change(what, why, line)
        if change not in self.changes:
            self.changes.append(change)

    def by_hand(self, what: str, reason: str, do: str, line: int | None = None) -> None:
        """Note once what is left to the user."""
        item = Manual(what, reason, do, line)
        if item not in self.manual:
            self.manual.append(item)


@dataclass(frozen=True, slots=True)
class Migration:
    """The outcome of `migrate_config`.

    text: the migrated input in its own form (a mapping comes back as a mapping, overrides as one token per line).
    form: what the input was. because: why `from_version` was taken. differences: canonical fields that do not have the
    value they had, with the step that explains it. report: our verdict on the result for the target release, None when
    the result could not be read as a config (then `note` says why).
    """

    text: str | dict[str, Any]
    form: str
    source: str
    from_version: str
    to_version: str
    because: str
    changes: tuple[Change, ...]
    manual: tuple[Manual, ...]
    differences: tuple[Difference, ...]
    report: ValidationReport | None
    note: str = ""

    @property
    def clean(self) -> bool:
        """Whether nothing is left to do: no manual item, no unexplained difference, no error of the target release."""
        unexplained = any(not difference.why for difference in self.differences)
        failing = self.report is not None and bool(self.report.at_least("error"))
        return not self.manual and not unexplained and not failing and not (self.note and self.report is None)

    def to_dict(self) -> dict[str, Any]:
        """Return the migration as JSON-ready data; the keys are a contract."""
        return {
            "source": self.source,
            "form": self.form,
            "from_version": self.from_version,
            "to_version": self.to_version,
            "because": self.because,
            "clean": self.clean,
            "changes": [change.to_dict() for change in self.changes],
            "manual": [item.to_dict() for item in self.manual],
            "differences": [difference.to_dict() for difference in self.differences],
            "note": self.note or None,
            "report": self.report.to_dict() if self.report is not None else None,
            "text": self.text,
        }
