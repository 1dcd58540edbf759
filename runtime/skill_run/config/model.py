"""What every reader produces (a Source) and what the rules see (a Config).

Vocabulary. *Written name*: the dotted path as the user's file spells it. *Canonical name*: the same field in the
newest release's spelling, which is what rules use. A field is *set* (a value was found), *unset* (the release's
default applies) or *unknown* (nobody can tell without running the user's code).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal

Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]

Form = Literal["container", "yaml", "json", "mapping", "overrides", "python", "recipe", "command", "sbatch"]


@dataclass(frozen=True, slots=True)
class Location:
    """A place in the input: file as the user named it, line and column from 1.

    Without a file and a line, column counts the command-line arguments or tokens instead.
    """

    file: str | None = None
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        if self.file is None and self.line is None and self.column is not None:
            return f"argument {self.column}"
        parts = [self.file or "input"]
        if self.line is not None:
            parts.append(str(self.line))
            if self.column is not None:
                parts.append(str(self.column))
        return ":".join(parts)


NOWHERE = Location()


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that cannot be told statically; `reason` is a clause for the user ("comes from argparse")."""

    reason: str


# How the reason of a value begins that only some path of the code sets.
CONDITION: Final = "depends on a condition"

Operation = Literal["set", "override", "add", "force", "delete"]


@dataclass(frozen=True, slots=True)
class Assignment:
    """One value that the input gives.

    path: written name, for example `dataset.packed_sequence_specs.pad_seq_to_mult`; containers are flattened to
        their leaves, except lists and free-form values of one field.
    value: plain data or Unknown.
    operation: `set` (a file or attribute assignment), `override` (Hydra `a=b`: the key must exist), `add` (`+a=b`),
        `force` (`++a=b`), `delete` (`~a`).
    """

    path: str
    value: Plain | Unknown
    location: Location = NOWHERE
    operation: Operation = "set"


@dataclass(frozen=True, slots=True)
class Import:
    """`from module import symbol` in a Python file (symbol is None for `import module`)."""

    module: str
    symbol: str | None
    location: Location = NOWHERE


@dataclass(frozen=True, slots=True)
class Remark:
    """Something a reader itself noticed; becomes a finding of the computed rule `rule`.

    fields: written names; message: the sentence; fix: written name -> value; fires: the phase in which upstream
    notices, when it differs from what the rule says.
    """

    rule: str
    message: str
    fields: tuple[str, ...] = ()
    location: Location = NOWHERE
    fix: Mapping[str, Plain] = field(default_factory=dict)
    fires: str | None = None


@dataclass(slots=True)
class Source:
    """What one reader found in one input, still in written names.

    recipe: name of the recipe function the input starts from; base_unknown: why the starting point cannot be known
    (then every field that is not assigned is unknown, not default); script: the training script that a command line
    starts; env: the run's environment, None when the input says nothing of it; bridge_hints: pairs of a version
    specifier such as ">=0.6" and the reason why the input fits only those releases.
    """

    form: Form
    name: str
    text: str = ""
    assignments: list[Assignment] = field(default_factory=list)
    recipe: str | None = None
    recipe_location: Location = NOWHERE
    base_unknown: str | None = None
    world_size: int | Unknown | None = None
    env: dict[str, str] | None = None
    imports: list[Import] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)
    bridge_hints: list[tuple[str, str]] = field(default_factory=list)
    script: str | None = None
    override_tokens: list[str] = field(default_factory=list)


class State(Enum):
    """How a field got its value."""

    SET = "set"
    UNSET = "unset"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Value:
    """One resolved field. `value` is meaningless when state is UNKNOWN; `reason` says why then.

    as_list: the input gives a list where it could also give one name (the two read alike, but upstream counts a list).
    """

    state: State
    value: Plain = None
    location: Location = NOWHERE
    written: str | None = None
    reason: str | None = None
    as_list: bool = False
