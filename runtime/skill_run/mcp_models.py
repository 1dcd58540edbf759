"""What the MCP tools answer: the shapes behind their output schemas."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

Severity = Literal["error", "corruption", "warning", "info"]
JobState = Literal["running", "passed", "failed"]
Phase = Literal["construct", "validate", "setup", "data", "forward", "never"]


class Summary(BaseModel):
    """Counts over the whole report, whatever page of it is shown."""

    error: int = Field(description="Findings that stop the run: refused, crash or hang.")
    corruption: int = Field(description="Findings that let the run finish with silently wrong training.")
    warning: int = Field(description="Findings that cost speed, memory or trust in a number.")
    info: int = Field(description="Findings that are good to know.")
    not_checked: int = Field(description="Rules that could not be decided because an input is missing.")


class Bridge(BaseModel):
    """The Megatron-Bridge release that the config was judged by."""

    version: str = Field(description="Version that was asked for, installed or implied by the input.")
    release: str = Field(description="Recorded release whose data was used.")
    because: str = Field(description="Why this version was taken.")


class Place(BaseModel):
    """A place in the input; lines and columns count from 1."""

    file: str | None = Field(description="File as it was named in the call, null for text and overrides.")
    line: int | None = Field(description="Line, null when not known.")
    column: int | None = Field(description="Column, null when not known.")


class Finding(BaseModel):
    """One problem of the config."""

    rule: str = Field(description="Rule id; explain_rule tells more.")
    severity: Severity = Field(description="What happens to the run; fix corruption and error before launching.")
    title: str = Field(description="The problem in one line.")
    message: str = Field(description="What is wrong with these values.")
    fields: list[str] = Field(description="Config fields concerned, in the names of the judged release.")
    location: Place | None = Field(description="Where the value is written, null when nothing is written.")
    fix: dict[str, Any] = Field(description="Field to new value; empty when there is no single right fix.")
    fix_left_out: list[str] = Field(description="Fields whose new value is too long to be repeated here.")
    fix_is_semantic: bool = Field(description="The fix changes what is trained: ask the user before applying it.")
    fires: Phase = Field(description="Phase in which Megatron-Bridge itself notices; `never` means silent.")
    skill: str = Field(description="Skill the rule belongs to.")
    evidence: list[dict[str, str]] = Field(description="Where upstream's code shows it; explain_rule gives all of it.")
    docs: str = Field(description="Command that explains the rule in a terminal.")


class Need(BaseModel):
    """An input that would decide rules that are not checked."""

    need: str = Field(
        description="`world_size`, `te`, `gpu` and `model` are arguments of validate_config, `env.NAME` belongs in its "
        "env, anything else is a config field."
    )
    rules: int = Field(description="Number of rules that lack it.")


class NotCheckedRule(BaseModel):
    """A rule that could not be decided."""

    rule: str = Field(description="Rule id.")
    title: str = Field(description="What the rule is about.")
    severity: Severity = Field(description="How bad a violation would be.")
    needs: list[str] = Field(description="Inputs that would decide it.")


class ConfigReport(BaseModel):
    """Every problem of one config, one page at a time."""

    verdict: str = Field(description="The result in two sentences.")
    summary: Summary = Field(description="Counts over the whole report.")
    upstream_validate: Literal["raises", "passes", "unknown"] = Field(
        description="What the real ConfigContainer.validate() would do. `passes` beside a corruption is a silent fault."
    )
    bridge: Bridge = Field(description="Release the config was judged by.")
    source: str = Field(description="What was validated.")
    world_size: int | None = Field(description="Number of ranks, null when not known.")
    base: str = Field(description="What unset fields were taken from.")
    rules_checked: int = Field(description="Rules that were decided.")
    total: int = Field(description="Findings at or above min_severity.")
    offset: int = Field(description="Number of findings before this page.")
    next_offset: int | None = Field(description="offset of the next page, null on the last one.")
    findings: list[Finding] = Field(description="Findings of this page, worst first.")
    needs: list[Need] = Field(description="Missing inputs, the most useful first; at most ten.")
    not_checked: list[NotCheckedRule] = Field(description="The undecided rules; empty unless list_not_checked is set.")


class RuleInRelease(BaseModel):
    """What a rule says for one release."""

    release: str = Field(description="Megatron-Bridge release.")
    severity: Severity = Field(description="What happens to the run.")
    fires: Phase = Field(description="Phase in which Megatron-Bridge itself notices.")


class RuleDetails(BaseModel):
    """One rule in full."""

    id: str = Field(description="Rule id.")
    skill: str = Field(description="Skill the rule belongs to.")
    title: str = Field(description="What must hold, or what goes wrong.")
    bridge: str = Field(description="Version specifier of the releases it applies to.")
    releases: list[RuleInRelease] = Field(description="Severity and phase by recorded release it applies to.")
    when: str = Field(description="CEL condition under which it applies; empty for a rule that the runtime computes.")
    require: str = Field(description="CEL condition that must hold then.")
    terms: dict[str, str] = Field(description="Meaning of the computed values in the conditions.")
    fields: list[str] = Field(description="Config fields it looks at.")
    message: str = Field(description="Message, with {expressions} to be filled in.")
    fix: dict[str, Any] = Field(description="Field to literal, or to a CEL expression when it is text.")
    fix_is_semantic: bool = Field(description="The fix changes what is trained.")
    advice: str = Field(description="What to do when there is no single right fix.")
    explanation: str = Field(description="Why.")
    evidence: list[dict[str, str]] = Field(description="Where upstream's code shows it.")
    fails: dict[str, Any] | None = Field(description="Settings of an example that breaks the rule.")
    passes: dict[str, Any] | None = Field(description="Settings of an example that keeps it.")
    file: str = Field(description="The rule's file in the bundle.")


class FieldInRelease(BaseModel):
    """How one release spells and types a field."""

    release: str = Field(description="Megatron-Bridge release.")
    name: str | None = Field(description="The field's name there, null when the release lacks it.")
    type: str = Field(description="Type, `or null` when it may be None.")
    has_default: bool = Field(description="False when the field must be given.")
    default: str | int | float | bool | list[str | int] | dict[str, Any] | None = Field(description="Default value.")
    classes: list[str] = Field(description="Dataset classes that have it in this form.")
    some_models: bool = Field(description="Only some model providers have it.")


class RuleReference(BaseModel):
    """A rule that mentions a field."""

    id: str = Field(description="Rule id.")
    title: str = Field(description="What the rule is about.")
    severity: Severity = Field(description="How bad a violation is.")


class FieldDetails(BaseModel):
    """One config field over the releases."""

    name: str = Field(description="Canonical name: the newest release's spelling.")
    meaning: str = Field(description="Meaning of a value that rules compute; empty for a plain field.")
    releases: list[FieldInRelease] = Field(description="Name, type and default in each recorded release.")
    rules: list[RuleReference] = Field(description="Rules that mention it, at most 60.")
    rules_total: int = Field(description="Number of rules that mention it.")


class RuleExplanation(BaseModel):
    """What the bundle knows about one rule or one field."""

    name: str = Field(description="Rule id, or the field's canonical name.")
    kind: Literal["rule", "field"] = Field(description="Which of `rule` and `field` is filled.")
    rule: RuleDetails | None = Field(description="The rule, null for a field.")
    field: FieldDetails | None = Field(description="The field, null for a rule.")


class BatchSummary(BaseModel):
    """The whole inspection in figures, whatever page of it is shown."""

    verdict: str = Field(description="What it is and how many findings of each severity there are, in one line.")
    error: int = Field(description="Findings that stop the run: refused, crash or hang.")
    corruption: int = Field(description="Findings that let the run finish with silently wrong training.")
    warning: int = Field(description="Findings that cost speed, memory or trust in a number.")
    info: int = Field(description="Findings that are good to know.")
    rows: int = Field(description="Rows (packs).")
    sequences: int = Field(description="Sequences that are not empty.")
    fill: float | None = Field(None, description="Share of the token slots that hold sequences, 0 to 1; null: unknown.")
    trained_tokens: int | None = Field(None, description="Tokens with loss, null when no loss mask tells.")


class BatchSequence(BaseModel):
    """One sequence of a row; lengths in tokens."""

    row: int = Field(description="Row it lies in.")
    start: int = Field(description="Its first token, counted from the row's begin.")
    logical: int = Field(description="Length without padding.")
    physical: int = Field(description="Length with padding.")
    trained: int | None = Field(description="Tokens with loss, null when not known.")


class BatchFinding(BaseModel):
    """One problem of the batch or dataset."""

    rule: str = Field(description="Rule id; explain_rule tells more.")
    severity: Severity = Field(description="What happens to a run that trains on this.")
    title: str = Field(description="The problem in one line.")
    message: str = Field(description="What is wrong with these values, and what to do.")
    fields: list[str] = Field(description="Keys, rows and files concerned.")
    fires: Phase = Field(description="Phase in which Megatron-Bridge itself notices; `never` means silent.")
    skill: str = Field(description="Skill the rule belongs to.")
    evidence: list[dict[str, str]] = Field(description="Where upstream's code shows it; explain_rule gives all of it.")
    docs: str = Field(description="Command that explains the rule in a terminal.")


class CutRank(BaseModel):
    """What one context parallel rank gets of the row."""

    rank: int = Field(description="Rank in the context parallel group.")
    tokens: int = Field(description="Tokens it gets.")
    trained: int | None = Field(description="Those with loss, null when not known.")
    work: int = Field(description="Attention pairs it computes.")
    runs: list[list[int]] = Field(description="First and one past the last token of its first runs, at most six.")


class CutPreview(BaseModel):
    """How context parallelism cuts the first row."""

    size: int = Field(description="Context parallel size.")
    whole: bool = Field(description="Every token is on exactly one rank.")
    duplicated: int = Field(description="Tokens that are held more than once.")
    lost: int = Field(description="Tokens that no rank holds.")
    outside: int = Field(description="Positions that point outside the row.")
    duplicated_runs: list[list[int]] = Field(description="First runs of duplicated tokens, as in ranks.")
    lost_runs: list[list[int]] = Field(description="First runs of lost tokens, as in ranks.")
    imbalance: float = Field(description="Work of the busiest rank over the mean.")
    ranks: list[CutRank] = Field(description="The ranks, at most 32.")


class BatchReport(BaseModel):
    """What a batch or a packed dataset holds, and every problem of it, one page at a time."""

    summary: BatchSummary = Field(description="Figures of the whole inspection.")
    source: str = Field(description="What was inspected, as it was named in the call.")
    path: str = Field(
        description="Packing path: offline_packed, in_batch_packed, megatron_lm_sft, packed, padded, "
        "packed_seq_params, packed_dataset or ranks."
    )
    generation: str = Field(description="Releases that make such a batch: <=0.5, >=0.6, main, megatron-lm or unknown.")
    because: str = Field(description="Why it was recognised as that.")
    meaning: str = Field(description="What its boundaries count: physical or logical lengths.")
    tokens: int | None = Field(description="Tokens of all rows, null when not known.")
    rows: int = Field(description="Rows (packs); ranks when path is ranks.")
    statistics: dict[str, Any] = Field(description="Further figures of a packed dataset by name; empty for a batch.")
    sequences_total: int = Field(
        description="Sequences that can be listed, empty ones too; of a packed dataset those of its first rows."
    )
    sequence_offset: int = Field(description="Number of sequences before this page.")
    next_sequence_offset: int | None = Field(description="sequence_offset of the next page, null on the last one.")
    sequences: list[BatchSequence] = Field(description="Sequences of this page, in the order of the boundaries.")
    total: int = Field(description="Number of findings.")
    offset: int = Field(description="Number of findings before this page.")
    next_offset: int | None = Field(description="offset of the next page, null on the last one.")
    findings: list[BatchFinding] = Field(description="Findings of this page, worst first.")
    cp: CutPreview | None = Field(description="Context parallel preview, null without cp or when it cannot be cut.")
    notes: list[str] = Field(description="What else is worth knowing, at most twenty.")


class Skill(BaseModel):
    """One skill of the bundle."""

    name: str = Field(description="Name of the skill.")
    title: str = Field(description="What it is about.")
    description: str = Field(description="When to use it.")
    validated_on: str = Field(description="Date and releases its claims were checked against.")
    rule_count: int = Field(description="Number of its rules.")
    resource: str = Field(description="Resource that holds its instructions, empty when it has none.")


class SkillList(BaseModel):
    """The skills of the bundle."""

    skills: list[Skill] = Field(description="Every skill, by name.")


class Check(BaseModel):
    """One check of the installation."""

    name: str = Field(description="What was checked.")
    passed: bool = Field(description="It came out right, or was skipped.")
    skipped: bool = Field(description="It could not run here; `detail` says what is missing.")
    detail: str = Field(description="A sentence with its figures.")
    seconds: float = Field(description="How long it took.")


class ParityLayout(BaseModel):
    """Packed training in one parallel layout against the unpacked reference."""

    layout: dict[str, Any] = Field(description="Parallel sizes and cp_comm_type.")
    passed: bool = Field(description="Errors are within the tolerance and nothing leaks.")
    loss_error: float | None = Field(description="Relative error of the loss.")
    gradient_error: float | None = Field(description="Relative error over all gradients.")
    worst_tensor: str = Field(description="Parameter whose gradient is furthest off.")
    tolerance: float | None = Field(description="Largest error that counts as equal, for this precision.")
    leaks: bool | None = Field(description="A sequence reads another one, or loses tokens; null when not tried.")
    diagnosis: str = Field(description="What is wrong, when it did not pass.")


class ParityControl(BaseModel):
    """A fault that was put in on purpose, to show that the comparison can fail."""

    name: str = Field(description="The fault.")
    caught: bool = Field(description="The comparison found it and named it rightly.")
    gradient_error: float | None = Field(description="Relative error over all gradients with the fault.")
    diagnosis: str = Field(description="What the comparison said.")


class Parity(BaseModel):
    """Packed against unpacked training on the real Megatron-Core."""

    passed: bool = Field(description="Every layout agrees and every control was caught.")
    worker: str = Field(description="Worker environment that ran it.")
    changes: list[str] = Field(description="What was made small, and how.")
    assumed: list[str] = Field(description="Model fields that the config does not tell.")
    layouts: list[ParityLayout] = Field(description="Every layout that was compared.")
    controls: list[ParityControl] = Field(description="Every fault that was put in.")
    notes: list[str] = Field(description="What the comparison could not take over.")


class Verification(BaseModel):
    """A verification job: its state, and what is known so far."""

    job: str = Field(description="Id to ask for it again.")
    state: JobState = Field(description="running, passed or failed.")
    doing: str = Field(description="Current step, while it runs.")
    done: int = Field(description="Finished steps of the comparison.")
    total: int = Field(description="All steps of the comparison, 0 when not known.")
    checks: list[Check] = Field(description="Checks of the installation that are finished.")
    parity: Parity | None = Field(description="The comparison, when it was asked for alone.")
    message: str = Field(description="Why the job could not be carried out; empty otherwise.")
