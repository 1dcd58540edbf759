"""The workflows of the bundle's cards: what each asks for, on which releases it works, and what it sets."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal

from skill_run.bridge.release import by_version, known_releases, matches
from skill_run.config.model import Plain
from skill_run.errors import InputError
from skill_run.rules.derived import DERIVED
from skill_run.rules.environment import build_environment, compile_expression, variables_in

_INPUT: Final = re.compile(r"\binputs\.(\w+)")
_ONE_INPUT: Final = re.compile(r"inputs\.(\w+)")


@dataclass(frozen=True, slots=True)
class Workflow:
    """One workflow of a card.

    skill: the card it stands in. bridge: specifier of the releases it works on. task: finetune or pretrain, any where
    it lays no claim to the data. classes: data set classes it works with, by specifier; none stands for any. inputs:
    the card's entries. settings: canonical field to literal or CEL expression.
    """

    id: str
    title: str
    skill: str
    bridge: str
    task: Literal["finetune", "pretrain", "any"]
    classes: Mapping[str, tuple[str, ...]]
    inputs: tuple[Mapping[str, Any], ...]
    settings: Mapping[str, Any]
    settings_by_release: Mapping[str, Mapping[str, Any]]

    def settings_for(self, release: str) -> dict[str, Any]:
        """Return the settings of one release, still as expressions."""
        found = dict(self.settings)
        for specifier, block in self.settings_by_release.items():
            if matches(specifier, release):
                found |= block
        return found

    def classes_for(self, release: str) -> tuple[str, ...]:
        """Return the data set classes the workflow works with on a release; () for any."""
        return by_version(self.classes, release) or ()

    @property
    def releases(self) -> tuple[str, ...]:
        """Return the recorded releases it works on."""
        return tuple(version for version in known_releases() if matches(self.bridge, version))

    @property
    def packs_offline(self) -> bool:
        """Tell whether it packs before training, so that a row is the micro batch."""
        return "dataset.offline_packing_specs.packed_sequence_size" in self.settings


@cache
def workflows() -> Mapping[str, Workflow]:
    """Return every workflow of the bundle by id, in the order of the cards."""
    from skill_run.bundle.card import load_card
    from skill_run.bundle.locate import bundle_root

    found: dict[str, Workflow] = {}
    for path in sorted(bundle_root().glob("skills/*/card.yaml")):
        card = load_card(path)
        for entry in card["workflows"]:
            found[entry["id"]] = Workflow(
                id=entry["id"],
                title=entry["title"],
                skill=card["name"],
                bridge=entry["bridge"],
                task=entry.get("task", "any"),
                classes={key: tuple(names) for key, names in entry.get("dataset_classes", {}).items()},
                inputs=tuple(entry["inputs"]),
                settings=entry["settings"],
                settings_by_release=entry.get("settings_by_release", {}),
            )
    return found


def find_workflow(name: str) -> Workflow:
    """Return a workflow by its id; InputError names the nearest, or those that there are."""
    if not isinstance(name, str):
        raise InputError(f"a workflow is named by text, not by {name!r:.60}")
    found = workflows().get(name)
    if found is None:
        import difflib

        near = difflib.get_close_matches(name, workflows(), n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(workflows()))}"
        raise InputError(f"there is no workflow {name[:60]!r}; {hint}")
    return found


def inputs_in(expression: object) -> frozenset[str]:
    """Return the names of the inputs that a setting's expression uses."""
    return frozenset(_INPUT.findall(expression)) if isinstance(expression, str) else frozenset()


def is_derived(expression: object) -> bool:
    """Tell whether a setting needs a derived value, so that every other setting must be in place first."""
    return isinstance(expression, str) and any(name in DERIVED for name in variables_in(expression))


def evaluate(expression: object, inputs: Mapping[str, Plain], derived: Callable[[str], Plain]) -> Plain:
    """Return the value of a setting: a literal as it is, text as a CEL expression over inputs.* and derived.*."""
    if not isinstance(expression, str):
        return expression  # type: ignore[return-value]
    alone = _ONE_INPUT.fullmatch(expression.strip())
    if alone:
        return inputs[alone[1]]
    filled = _INPUT.sub(lambda match: json.dumps(inputs[match[1]], ensure_ascii=False), expression)
    names = [name for name in variables_in(filled) if name in DERIVED]
    compiled = compile_expression(build_environment([filled]), filled)
    found: Plain = compiled.eval(data={name: derived(name) for name in names}).plain_value()
    return found
