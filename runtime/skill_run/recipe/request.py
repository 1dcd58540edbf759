"""What a generation is asked for, and the config that a recipe comes to with settings over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from skill_run.bridge.names import to_canonical, to_written
from skill_run.bridge.recipes import Recipe
from skill_run.bridge.release import load_release
from skill_run.config.config import Config
from skill_run.config.model import Assignment, Plain, Source, Unknown
from skill_run.config.overrides import read_overrides
from skill_run.errors import InputError
from skill_run.recipe.draft import Draft, Task
from skill_run.recipe.workflow import Workflow
from skill_run.rules.validate import build_config

WIDTH: Final = "dataset.offline_packing_specs.packed_sequence_size"


@dataclass(slots=True)
class Settled:
    """Canonical settings in the order in which they were decided, why, and the layout's sentences."""

    settings: dict[str, Plain] = field(default_factory=dict)
    comments: dict[str, str] = field(default_factory=dict)

    def set(self, name: str, value: Plain, why: str | None = None) -> None:
        """Set a field; an earlier reason goes with the earlier value."""
        self.comments.pop(name, None)
        self.settings[name] = value
        if why:
            self.comments[name] = why


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for, checked. auto: sizes that are not given are chosen; model: where the shape is read from."""

    workflow: Workflow
    task: Task
    recipe: Recipe
    release: str
    inputs: Mapping[str, Plain]
    gpus: int
    gpu: str
    model: str | None = None
    overrides: Sequence[str] = ()

    @property
    def auto(self) -> bool:
        """Tell whether sizes that were not given are chosen although nobody said so."""
        return self.model is not None and not {"tensor_parallel", "pipeline_parallel", "context_parallel"} <= set(
            self.inputs
        )


def overrides_of(request: Request) -> dict[str, Plain]:
    """Return the user's own `field=value` settings by canonical name."""
    found: dict[str, Plain] = {}
    if not request.overrides:
        return found
    kind = request.recipe.values.get("dataset.type")
    for assignment in read_overrides(list(request.overrides), name="--set").assignments:
        if isinstance(assignment.value, Unknown):
            raise InputError(f"the value of {assignment.path} must be plain: it {assignment.value.reason}")
        found[to_canonical(assignment.path, request.release, str(kind) if kind else None)] = assignment.value
    return found


def keeps_packing(request: Request) -> bool:
    """Tell whether the recipe packs offline and the workflow, which is not about data, lets it."""
    return request.workflow.task == "any" and isinstance(request.recipe.values.get(WIDTH), int)


def sources_of(recipe: Recipe, release: str, settings: Mapping[str, Plain]) -> list[Source]:
    """Return what our own reader makes of a recipe with these settings over it."""
    replaced = settings.get("dataset.type")
    kind = str(replaced or recipe.values.get("dataset.type") or "") or None
    assigned: list[Assignment] = []
    if replaced is not None:
        module = load_release(release).imports.get(str(replaced), str(replaced))
        assigned.append(Assignment("dataset", {"_target_": module}))
    assigned += [
        Assignment(to_written(name, release, kind), value) for name, value in settings.items() if name != "dataset.type"
    ]
    start = Source(form="recipe", name=recipe.name, recipe=recipe.name)
    return [start, Source(form="overrides", name="generated", assignments=assigned)]


def resolved(request: Request, settings: Mapping[str, Plain]) -> Config:
    """Return the config of the recipe with these settings over it."""
    return build_config(sources_of(request.recipe, request.release, settings), **judged_with(request))


def resolved_draft(draft: Draft) -> Config:
    """Return the config that a draft comes to."""
    return build_config(
        sources_of(draft.recipe, draft.bridge, draft.settings),
        bridge=draft.bridge,
        recipe=draft.recipe.name,
        world_size=draft.world_size,
        gpu=draft.gpu,
    )


def judged_with(request: Request) -> dict[str, Any]:
    """Return the arguments with which a config of this request is built."""
    return {"bridge": request.release, "recipe": request.recipe.name, "world_size": request.gpus, "gpu": request.gpu}
