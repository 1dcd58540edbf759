"""What the MCP tools that generate, migrate, plan and pack answer: the shapes behind their output schemas."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

JobState = Literal["running", "passed", "failed"]


class Problem(BaseModel):
    """A finding of our rules on the result."""

    rule: str = Field(description="Rule id; explain_rule tells more.")
    severity: Literal["error", "corruption", "warning", "info"] = Field(description="What happens to the run.")
    message: str = Field(description="What is wrong.")


class Reason(BaseModel):
    """Why a setting has its value."""

    field: str = Field(description="Config field, in the release's name.")
    value: str | int | float | bool | list[str | int | float | bool | None] | dict[str, Any] | None = Field(
        description="Its value; null where it is the recipe's."
    )
    because: str = Field(description="The reason in one sentence.")


class Recipe(BaseModel):
    """A generated config."""

    workflow: str = Field(description="Workflow that it was made from; empty when only workflows were asked for.")
    bridge: str = Field(description="Megatron-Bridge release that it is for.")
    recipe: str = Field(description="Recipe function that it starts from; empty without one.")
    form: str = Field(description="What text is: script, python, yaml, overrides or json.")
    text: str = Field(description="The config; write it to a file as it stands.")
    left_out: int = Field(description="Characters of a longer text that are not shown; 0: text is whole.")
    settings: dict[str, Any] = Field(description="What is set over the recipe, in the release's names.")
    reasons: list[Reason] = Field(description="Why the settings have their values.")
    problems: list[Problem] = Field(description="Findings on the result, worst first; no error or corruption is good.")
    next_commands: list[str] = Field(description="What to run next in a terminal.")
    workflows: list[dict[str, str]] = Field(description="The workflows, when none was named: id, title, bridge.")
    inputs: dict[str, Any] = Field(description="JSON Schema of a workflow's inputs, when describe was asked for.")


class Edit(BaseModel):
    """One thing that a migration changed."""

    what: str = Field(description="Old and new, in the config's words.")
    why: str = Field(description="The reason.")
    line: int | None = Field(description="Line of the input.")


class ByHand(BaseModel):
    """One thing that a migration did not dare to change."""

    what: str = Field(description="What is concerned.")
    reason: str = Field(description="Why it was not moved.")
    do: str = Field(description="What to do.")
    line: int | None = Field(description="Line of the input.")


class Migrated(BaseModel):
    """A config moved to another release."""

    from_version: str = Field(description="Release the input was for.")
    to_version: str = Field(description="Release the text is for.")
    clean: bool = Field(description="Nothing is left to do, and the result has no error.")
    text: str = Field(description="The moved config in its own form.")
    left_out: int = Field(description="Characters of a longer text that are not shown; 0: text is whole.")
    changes: list[Edit] = Field(description="What was changed.")
    changes_left_out: int = Field(description="How many more changes there are.")
    manual: list[ByHand] = Field(description="What a person must do.")
    problems: list[Problem] = Field(description="Findings on the result, worst first.")
    note: str = Field(description="Why the result could not be judged; usually empty.")


class PackSize(BaseModel):
    """One pack size of a plan."""

    pack_size: int = Field(description="Tokens of a pack.")
    unfit: str = Field(description="Why it cannot be used; empty when it can.")
    packs: int | None = Field(description="Packs of the whole data.")
    fill: float | None = Field(description="Share of the token slots that hold tokens of samples.")
    sequences_mean: float | None = Field(description="Samples in a pack, on average.")
    sequences_max: int | None = Field(description="Most samples in a pack.")
    truncated: int = Field(description="Samples that are cut.")
    dropped: int = Field(description="Samples that are left out.")
    lost: float = Field(description="Share of all tokens that is lost by cutting and dropping.")
    global_batch_size: int | None = Field(description="Packs of an optimizer step at equal token slots.")
    steps_per_epoch: int | None = Field(description="Optimizer steps of an epoch.")
    work_spread: float | None = Field(description="Attention work of packs, 99th percentile over the median.")
    memory_gib: float | None = Field(description="Memory of the fullest GPU; null without a model and GPUs.")


class Traffic(BaseModel):
    """Context parallelism at the recommended pack size, for one layer's forward pass."""

    cp: int = Field(description="Context parallel size.")
    cp_comm_type: str = Field(description="How ranks exchange keys and values.")
    verdict: str = Field(
        description="hidden: transfer hides behind attention; exposed: it costs time; else: cannot be."
    )
    why: str | None = Field(description="What it needs, or why it cannot be.")
    attention_us: float | None = Field(description="Attention, microseconds.")
    transfer_us: float | None = Field(description="Transfer, microseconds.")
    wait: float | None = Field(description="Share of the layer's time that is waited for transfer.")


class Plan(BaseModel):
    """A comparison of pack sizes and a recommendation."""

    bridge: str = Field(description="Release that cutting and names are told for.")
    lengths: dict[str, Any] = Field(description="The data: samples, tokens, shortest, median, p95, p99, longest, mean.")
    model: str = Field(description="Model that traffic and memory are told for.")
    pack_size: int | None = Field(description="Recommended pack size; null when none can be.")
    reasons: list[str] = Field(description="The numbers that decide.")
    overrides: list[str] = Field(description="Settings as overrides in the release's names.")
    sizes: list[PackSize] = Field(description="The sizes that were compared.")
    traffic: list[Traffic] = Field(description="Context parallelism at the recommended size.")
    notes: list[str] = Field(description="What the figures leave out.")
    next_commands: list[str] = Field(description="What to run next in a terminal.")


class Packing(BaseModel):
    """A packing job and, at its end, its report."""

    job: str = Field(description="Id of the job: ask again with it.")
    state: JobState = Field(description="passed: the files are whole.")
    doing: str = Field(description="What is going on.")
    done: int = Field(description="Progress, of total.")
    total: int = Field(description="0 while it is not known.")
    report: dict[str, Any] = Field(description="Samples, packs, fill, what was cut or left out, files, settings.")
    message: str = Field(description="Why it failed; empty otherwise.")
