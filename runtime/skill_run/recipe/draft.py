"""What a generated training setup holds before it is written in one of the output forms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from skill_run.bridge.recipes import Recipe
from skill_run.config.model import Plain

Task = Literal["sft", "peft", "pretrain"]


@dataclass(frozen=True, slots=True)
class Draft:
    """A recipe of a release and the settings that go over it.

    bridge: a recorded release. settings: plain values by canonical field, only those that exist in the release and
    differ from the recipe or must be pinned; `dataset.type` in it means that the data set object is replaced by that
    class, with every `dataset.*` setting as a keyword. comments: why, one line each, by canonical field. data: a
    folder or a Hugging Face id. env: environment variables to set for the run.
    """

    bridge: str
    workflow: str
    title: str
    task: Task
    recipe: Recipe
    settings: dict[str, Plain]
    comments: dict[str, str] = field(default_factory=dict)
    world_size: int = 1
    gpu: str = "h100"
    data: str | None = None
    env: dict[str, str] = field(default_factory=dict)
