"""Canonical names (the newest release's spelling, which rules use) and each release's written names."""

from __future__ import annotations

import difflib
from functools import cache

from skill_run.bridge.release import FieldSpec, _spec, index, known_releases, load_release, matches


def _swap(name: str, old: str, new: str) -> str | None:
    if name == old:
        return new
    if name.startswith(old + "."):
        return new + name[len(old) :]
    return None


@cache
def to_canonical(written: str, version: str, dataset_type: str | None = None) -> str:
    """Return the canonical name of a name as release `version` writes it (unchanged when it was never renamed)."""
    for rename in index()["renames"]:
        if matches(rename["bridge"], version) and dataset_type in rename.get("datasets", [dataset_type]):
            swapped = _swap(written, rename["old"], rename["new"])
            if swapped is not None:
                return swapped
    for alias in index()["aliases"]:
        if written == alias["name"] and matches(alias["bridge"], version):
            return str(alias["of"])
    return written


@cache
def to_written(canonical: str, version: str, dataset_type: str | None = None) -> str:
    """Return the name under which release `version` knows the canonical field."""
    for rename in index()["renames"]:
        if matches(rename["bridge"], version) and dataset_type in rename.get("datasets", [dataset_type]):
            swapped = _swap(canonical, rename["new"], rename["old"])
            if swapped is not None:
                return swapped
    return canonical


def is_alias(written: str, version: str) -> bool:
    """Tell whether release `version` takes this name for another field (or a property of the same one)."""
    return any(written == alias["name"] and matches(alias["bridge"], version) for alias in index()["aliases"])


def exists(canonical: str, version: str, dataset_type: str | None = None) -> bool:
    """Tell whether release `version` has the canonical field."""
    written = to_written(canonical, version, dataset_type)
    return load_release(version).field(written, dataset_type) is not None or is_free_form(written)


def is_free_form(name: str) -> bool:
    """Tell whether a name lies inside a field that holds anything (`dataset.dataset_kwargs.x`)."""
    return any(name == field or name.startswith(field + ".") for field in index()["free_form"])


def other_releases(written: str) -> list[str]:
    """Return the recorded releases that have this written name."""
    return [version for version in known_releases() if load_release(version).field(written) is not None]


def _alike(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def _nearness(name: str, section: str, version: str) -> tuple[float, bool, float, str]:
    """Rank a field by how well its section matches; where none does, a field that every run has comes first."""
    alike = _alike(name.rpartition(".")[0], section)
    spec = load_release(version).fields.get(name)
    return alike if alike > 0.6 else 0, spec is not None and not spec.foreign, alike, name


def nearest(written: str, version: str) -> str | None:
    """Return the written name of the release that is closest to a misspelt one, or None when nothing is close."""
    names = load_release(version).written_names()
    section, _, leaf = written.rpartition(".")
    leaves: dict[str, list[str]] = {}
    for name in names:
        leaves.setdefault(name.rpartition(".")[2], []).append(name)
    if leaf in leaves:
        return max(leaves[leaf], key=lambda name: _nearness(name, section, version))
    same = [name for name in names if name.startswith(section + ".")]
    for pool in (same, names):
        found = difflib.get_close_matches(written, pool, n=1, cutoff=0.85)
        if found:
            return found[0]
    return None


@cache
def canonical_field(name: str) -> FieldSpec | None:
    """Return the type of a canonical name: the newest release that has it, or a known key of a free-form field."""
    if name in index()["kwargs"]:
        return _spec([index()["kwargs"][name], None])
    section, _, rest = name.partition(".")
    if rest == "type" and section in ("dataset", "model", "peft"):
        return FieldSpec("str", nullable=True, default=None)
    for version in reversed(known_releases()):
        release = load_release(version)
        if name == "dataset.offline_packing_specs":
            return FieldSpec("specs", nullable=True, default=None)
        if not rest and name in release.sections:
            return FieldSpec("str" if name == "mixed_precision" else "map", nullable=True, default=None)
        found = release.field(to_written(name, version))
        if found is not None:
            return found
    return None
