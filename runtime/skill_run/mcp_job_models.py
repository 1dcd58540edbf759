"""What the MCP tools for jobs answer: the shapes behind their output schemas."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

JobState = Literal["previewed", "queued", "running", "succeeded", "failed", "stopped", "lost"]


class EnvironmentVariable(BaseModel):
    """A variable that the run gets."""

    name: str = Field(description="Its name.")
    value: str = Field(description="Its value.")
    reason: str = Field(description="Why it is set.")


class LaunchAnswer(BaseModel):
    """The preview of a launch, or the job that its token started."""

    job: str = Field(description="Id of the job.")
    state: JobState = Field(description="previewed: nothing has started. Otherwise the job was started.")
    confirm_token: str = Field(description="Starts this very plan, once; empty when the job was started.")
    valid_seconds: int = Field(description="For how long the token is valid.")
    summary: str = Field(description="The plan in one sentence, to be shown to the user.")
    device: Literal["gpu", "cpu"] = Field(description="cpu: made small, in the worker of this machine.")
    ranks: list[str] = Field(description="The arithmetic of nodes, ranks and batches.")
    commands: list[str] = Field(description="The commands that run, quoted as a shell would take them.")
    batch_script: str = Field(description="Text of the Slurm batch script; empty for the local engine.")
    environment: list[EnvironmentVariable] = Field(description="Variables of the run.")
    outputs: dict[str, str] = Field(description="What the run writes, and where.")
    resumes_from: str = Field(description="Checkpoint that training goes on from; empty: from the beginning.")
    gpu_hours: float | None = Field(description="Most that it costs; null when not known, or without GPUs.")
    accepted: list[str] = Field(description="Rules whose findings were accepted.")
    settings: list[str] = Field(description="Fields that the plan sets after the config, with the reason.")
    settings_left_out: int = Field(description="How many more there are.")
    warnings: list[str] = Field(description="What may go wrong.")
    notes: list[str] = Field(description="What the user should know.")


class JobEntry(BaseModel):
    """A job in a list."""

    job: str = Field(description="Id, for get_job and stop_job.")
    name: str = Field(description="Name that it was given.")
    state: JobState = Field(description="lost: the engine cannot tell what became of it.")
    engine: str = Field(description="local or slurm.")
    created: str = Field(description="When it was previewed, UTC.")
    ended: str = Field(description="When it ended, UTC; empty before.")
    step: int | None = Field(description="Last step that it told.")
    loss: float | str | None = Field(description="Loss of that step; NaN and Infinity are text.")


class JobList(BaseModel):
    """Jobs, the newest first."""

    jobs: list[JobEntry] = Field(description="At most as many as were asked for.")


class JobReport(BaseModel):
    """A job as it stands now, by what its engine says."""

    job: str = Field(description="Id of the job.")
    name: str = Field(description="Name that it was given.")
    state: JobState = Field(description="lost: the engine cannot tell what became of it.")
    engine: str = Field(description="local or slurm.")
    folder: str = Field(description="Its folder: plan, config, log, figures, captured batches.")
    created: str = Field(description="When it was previewed, UTC.")
    started: str = Field(description="When it was started, UTC; empty before.")
    ended: str = Field(description="When it ended, UTC; empty before.")
    exit_code: int | None = Field(description="Exit code, 128 + N for signal N.")
    reason: str = Field(description="Why it is in this state.")
    note: str = Field(description="Why the state may be old; usually empty.")
    diagnosis: str = Field(description="Likely cause of a failure and its fix; empty otherwise.")
    metrics: dict[str, Any] = Field(description="Newest figures: step, loss, tokens, tokens_per_second, grad_norm.")
    padding_share: float | None = Field(description="Part of the computed tokens that is padding.")
    log: list[str] = Field(description="Last lines of the log, as many as were asked for.")
    outputs: dict[str, str] = Field(description="What it writes, and where.")
