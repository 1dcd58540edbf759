"""Recorded outcomes of the real ConfigContainer.validate(): full configs, kept as differences from one base each."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, slots=True)
class RecordedCase:
    """One real config and what the real validate() of that Bridge version did with it."""

    id: str
    version: str
    world_size: int
    config: dict[str, Any]
    raises: str | None
    message: str
    where: str


def _tree(base: Mapping[str, Any], case: Mapping[str, Any]) -> dict[str, Any]:
    leaves = dict(base)
    for dropped in case.get("drop", ()):
        for path in [p for p in leaves if p == dropped or (dropped.endswith("/") and p.startswith(dropped))]:
            del leaves[path]
    leaves.update(case["set"])
    tree: dict[str, Any] = {}
    for path, value in leaves.items():
        node = tree
        *parents, leaf = path.split("/")
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return tree


def read_cases(data: bytes) -> Iterator[RecordedCase]:
    """Yield the cases of a gzipped recording."""
    for version, recording in json.loads(gzip.decompress(data)).items():
        for case in recording["cases"]:
            yield RecordedCase(
                id=case["id"],
                version=version,
                world_size=case["world_size"],
                config=_tree(recording["base"], case),
                raises=case.get("raises"),
                message=case.get("message", ""),
                where=case.get("where", ""),
            )


def shipped_cases() -> list[RecordedCase]:
    """Return the cases that ship with the package."""
    return list(read_cases((files("skill_run.verify") / "data" / "recorded_outcomes.json.gz").read_bytes()))
