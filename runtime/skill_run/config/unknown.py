"""Names that the release does not have, of another generation or misspelt, and what upstream does with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from skill_run.bridge import names
from skill_run.bridge.release import index
from skill_run.config.config import Config
from skill_run.config.model import Assignment, Plain, Remark, Unknown

# Finding the nearest known name takes milliseconds, and nobody reads more than this.
MAX_UNKNOWN_NAMES: Final = 50
_SPECS: Final = "dataset.offline_packing_specs"


def unknown_remarks(unknown: Mapping[str, list[Assignment]], config: Config, taken: frozenset[str]) -> list[Remark]:
    """Return one remark per unknown name, those below one renamed section together.

    unknown: the assignments by written name. taken: canonical fields that the input sets under their right name, which
    a fix must not overwrite.
    """
    groups: dict[str, list[Assignment]] = {}
    for path, found in unknown.items():
        groups.setdefault(_group(path), []).extend(found)
    remarks = [_remark(key, groups[key], config, taken) for key in list(groups)[:MAX_UNKNOWN_NAMES]]
    rest = len(groups) - MAX_UNKNOWN_NAMES
    if rest > 0:
        message = f"{rest} more names are not in this release; the first {MAX_UNKNOWN_NAMES} are reported one by one."
        remarks.append(Remark("unrecognised-field", message))
    return remarks


def _group(path: str) -> str:
    for rename in index()["renames"]:
        for spelling in (rename["old"], rename["new"]):
            if path == spelling or path.startswith(spelling + "."):
                return str(spelling)
    return path


def _remark(key: str, found: list[Assignment], config: Config, taken: frozenset[str]) -> Remark:
    version = config.release.version
    others = names.other_releases(found[0].path)
    if version in others:
        field = found[0].path.partition(".")[2]
        owner = f"{config.dataset_type} of Megatron-Bridge {version}"
        return _made("unknown-field", f"{owner} has no field {field}, though other dataset classes do.", found, {})
    if others:
        return _of_another_release(key, found, others, config, taken)
    near = names.nearest(found[0].path, version)
    value = found[0].value
    fix: dict[str, Plain] = {}
    if near is not None and not isinstance(value, Unknown):
        canonical = names.to_canonical(near, version, config.dataset_type)
        fix = {near: value} if canonical not in taken else {}
    hint = f"; did you mean {near}?" if near is not None else "."
    rule = "unknown-field" if near is not None or found[0].operation == "override" else "unrecognised-field"
    return _made(rule, f"Megatron-Bridge {version} has no field {found[0].path}{hint}", found, fix)


def _of_another_release(
    key: str, found: list[Assignment], others: list[str], config: Config, taken: frozenset[str]
) -> Remark:
    version = config.release.version
    fix: dict[str, Plain] = {}
    for assignment in found:
        canonical = names.to_canonical(assignment.path, others[-1])
        new = names.to_written(canonical, version, config.dataset_type)
        known = config.release.field(new) is not None and canonical not in taken
        if known and not isinstance(assignment.value, Unknown):
            fix[new] = assignment.value
    specs = [value for name, value in fix.items() if name.startswith(_SPECS)]
    if specs != [None] * len(specs) and config.release.field("dataset.enable_offline_packing"):
        fix["dataset.enable_offline_packing"] = True
    span = others[0] if len(others) == 1 else f"{others[0]} to {others[-1]}"
    told = f"; this release calls it {next(iter(fix))}" if fix else ""
    if len(fix) > 1:
        told = f"; write {', '.join(fix)} instead"
    return _made("renamed-field", f"{key} is a name of Megatron-Bridge {span}, not of {version}{told}.", found, fix)


def _made(rule: str, message: str, found: list[Assignment], fix: Mapping[str, Plain]) -> Remark:
    fires = "construct" if found[0].operation == "override" else "never"
    paths = tuple(dict.fromkeys(assignment.path for assignment in found))
    return Remark(rule, f"{message} {_fate(found[0])}", paths, found[0].location, fix, fires)


def _fate(assignment: Assignment) -> str:
    """Say what upstream does with a name it does not have."""
    if assignment.operation == "override":
        return "Hydra stops with a key error; adding '+' would only hide it, since the value is then skipped."
    if assignment.operation in ("add", "force"):
        return "The override is accepted, then skipped with a logged warning only."
    return "Upstream drops it without an error, so the setting has no effect."
