"""The recorded releases: their fields with types and defaults, in the release's own (written) names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from skill_run.config.model import Plain

NO_DEFAULT: Final = object()


def read_data(name: str) -> Any:
    """Return one JSON file of the package's release data."""
    return json.loads((files("skill_run.bridge") / "data" / name).read_text("utf-8"))


@cache
def index() -> dict[str, Any]:
    """Return `releases.json`: known releases, renames, dataset classes and field groups."""
    data: dict[str, Any] = read_data("releases.json")
    return data


@cache
def matches(specifier: str, version: str) -> bool:
    """Tell whether a version satisfies a PEP 440 specifier; `*` matches every version, development versions count."""
    return specifier == "*" or SpecifierSet(specifier).contains(Version(version), prereleases=True)


def by_version(table: Mapping[str, Any], version: str) -> Any:
    """Return the entry of the first specifier in `table` that `version` satisfies, None when there is none."""
    return next((entry for specifier, entry in table.items() if matches(specifier, version)), None)


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field of a release.

    kind: int, bool, str, float, dtype, ints, strs, map, specs or any. loose: the type was seen, not declared, so a
    value of another type is not an error. foreign: the field belongs to some providers only.
    """

    kind: str
    nullable: bool
    default: object = NO_DEFAULT
    loose: bool = False
    foreign: bool = False


def _spec(entry: list[Any]) -> FieldSpec:
    text: str = entry[0]
    kind = text.rstrip("?~+")
    return FieldSpec(
        kind=kind,
        nullable="?" in text,
        default=entry[1] if len(entry) > 1 else NO_DEFAULT,
        loose="~" in text,
        foreign="+" in text,
    )


@dataclass(frozen=True)
class Release:
    """One Megatron-Bridge release with the Megatron Core release paired with it."""

    version: str
    core: str
    sections: frozenset[str]
    optional_sections: frozenset[str]
    specs_field: str
    fields: Mapping[str, FieldSpec]
    specs: Mapping[str, FieldSpec]
    datasets: Mapping[str, Mapping[str, FieldSpec]]
    imports: Mapping[str, str]

    def field(self, written: str, dataset_type: str | None = None) -> FieldSpec | None:
        """Return the field with this written name, or None; a dataset field depends on the dataset class."""
        section, _, rest = written.partition(".")
        if section != "dataset":
            return self.fields.get(written)
        head, _, leaf = rest.partition(".")
        if head == self.specs_field and leaf:
            return self.specs.get(leaf)
        if dataset_type is not None and dataset_type in self.datasets:
            return self.datasets[dataset_type].get(rest)
        return next((table[rest] for table in self.datasets.values() if rest in table), None)

    def written_names(self) -> list[str]:
        """Return every written field name of the release."""
        names = {*self.fields, *(f"dataset.{name}" for table in self.datasets.values() for name in table)}
        names |= {f"dataset.{self.specs_field}.{name}" for name in self.specs}
        return sorted(names)


@cache
def load_release(version: str) -> Release:
    """Load the recorded release `version` (one of `known_releases()`)."""
    raw = read_data(f"{version}.json")
    return Release(
        version=raw["version"],
        core=raw["core"],
        sections=frozenset(raw["sections"]),
        optional_sections=frozenset(raw["optional_sections"]),
        specs_field=raw["specs_field"],
        fields={name: _spec(entry) for name, entry in raw["fields"].items()},
        specs={name: _spec(entry) for name, entry in raw["specs"].items()},
        datasets={cls: {name: _spec(entry) for name, entry in table.items()} for cls, table in raw["datasets"].items()},
        imports=raw["imports"],
    )


@cache
def known_releases() -> tuple[str, ...]:
    """Return the recorded releases, oldest first."""
    return tuple(index()["releases"])


def newest_release() -> str:
    """Return the newest recorded release that is published."""
    return str(index()["newest"])


def default_of(spec: FieldSpec) -> Plain:
    """Return the default of a field that has one."""
    assert spec.default is not NO_DEFAULT
    return spec.default  # type: ignore[return-value]
