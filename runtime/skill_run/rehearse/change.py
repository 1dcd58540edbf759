"""One change that a rehearsal makes to a config, and the plan of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Kind = Literal["size", "layout", "cpu", "precision", "run", "offline"]

# In the order in which they are told.
KINDS: Final[dict[str, str]] = {
    "size": "made smaller",
    "layout": "fewer ranks",
    "cpu": "needs a GPU",
    "precision": "precision",
    "run": "length of the run and its outputs",
    "offline": "files instead of the network",
}


@dataclass(frozen=True, slots=True)
class Change:
    """A field of the config (written name) that a rehearsal sets, with the reason; values are JSON-ready."""

    field: str
    old: Any
    new: Any
    kind: Kind
    why: str

    def to_dict(self) -> dict[str, Any]:
        """Return the change as JSON-ready data."""
        return {"field": self.field, "old": self.old, "new": self.new, "kind": self.kind, "why": self.why}


@dataclass(slots=True)
class Draft:
    """The values of a config and the changes made to them so far.

    values: written name -> value, for every field that the config's objects have. Fields that it does not have are
    never changed, so one plan fits every model provider and dataset class.
    """

    values: Mapping[str, Any]
    changes: list[Change] = field(default_factory=list)

    def has(self, name: str) -> bool:
        """Tell whether the config has this field."""
        return name in self.values

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value as the last change left it."""
        for change in reversed(self.changes):
            if change.field == name:
                return change.new
        return self.values.get(name, default)

    def original(self, name: str, default: Any = None) -> Any:
        """Return the value before any change; `default` stands for null too."""
        value = self.values.get(name)
        return default if value is None else value

    def put(self, name: str, new: Any, kind: Kind, why: str) -> None:
        """Set a field that exists and differs."""
        if name in self.values and not _same(self.get(name), new):
            self.changes.append(Change(name, self.values[name], new, kind, why))


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other
