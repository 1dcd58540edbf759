"""What a rehearsal found, as data and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from skill_run.rehearse.change import KINDS
from skill_run.rehearse.limits import limits_of
from skill_run.report.finding import Finding, ValidationReport
from skill_run.report.safe import clip, flow, strict
from skill_run.report.wording import count

if TYPE_CHECKING:
    from skill_run.batch.inspect import InspectionReport

# A failure at these stages is what the config or the data caused before any step.
_LOG_LIMIT: Final = 6000
_BAD: Final = "corruption"


@dataclass(frozen=True, slots=True)
class RehearsalReport:
    """One rehearsal: findings of the rules, what each real stage did, the captured batch, and what stays open.

    stages: {"stage", "status": ok | failed | skipped, "seconds", ...figures}; result: as the worker sent it.
    """

    source: str
    worker: str
    rules: ValidationReport
    result: Mapping[str, Any]
    batch: InspectionReport | None = None
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    stages: Sequence[Mapping[str, Any]] = field(default_factory=tuple)

    @property
    def failed(self) -> Mapping[str, Any] | None:
        """The real stage that failed, None when all went well."""
        return next((stage for stage in self.stages if stage["status"] == "failed"), None)

    @property
    def passed(self) -> bool:
        """Whether every stage went well and nothing was found that breaks or corrupts a run."""
        found = self.batch.at_least(_BAD) if self.batch is not None else []
        return self.failed is None and not found and not self.rules.at_least(_BAD) and not self.result["problems"]

    @property
    def limits(self) -> list[str]:
        """What a CPU cannot show, from what was changed."""
        return limits_of(self.result["changes"], own_layer_spec=bool(self.result.get("own_layer_spec")))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready data."""
        batch = None
        if self.batch is not None:
            batch = {
                "path": self.batch.path,
                "summary": self.batch.summary,
                "findings": [finding.to_dict() for finding in self.batch.findings],
            }
        told: dict[str, Any] = strict(
            {
                "source": self.source,
                "worker": self.worker,
                "passed": self.passed,
                "failed_stage": None if self.failed is None else self.failed["stage"],
                "seconds": self.seconds,
                "rules": {
                    "summary": self.rules.summary,
                    "upstream_validate": self.rules.upstream_validate,
                    "findings": [finding.to_dict() for finding in self.rules.findings],
                },
                "stages": [_bounded(stage) for stage in self.stages],
                "layout": self.result.get("layout"),
                "data": self.result.get("data"),
                "batch": batch,
                "changes": list(self.result["changes"]),
                "problems": list(self.result["problems"]),
                "limits": self.limits,
                "notes": list(self.notes),
            }
        )
        return told


def _bounded(stage: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stage with the end of upstream's traceback as `log`."""
    kept = {key: value for key, value in stage.items() if key != "detail"}
    return {**kept, "log": str(stage["detail"])[-_LOG_LIMIT:]} if stage.get("detail") else kept


def render_rehearsal(report: RehearsalReport, *, width: int = 100, verbose: bool = False) -> str:
    """Return the report as text, without a final newline; verbose also lists every change."""
    from skill_run.report.parity import wrapped

    return wrapped(list(_lines(report, verbose)), width)


def _lines(report: RehearsalReport, verbose: bool) -> Iterator[str]:
    yield f"Rehearsed {flow(report.source)} on worker {report.worker}{_layout(report)}."
    yield from _rules(report.rules.findings)
    for stage in report.stages:
        yield from _stage(stage)
    if report.batch is not None:
        yield from _batch(report.batch)
    yield from (f"FAIL at full size: {flow(problem)}" for problem in report.result["problems"])
    yield from _changes(report.result["changes"], verbose)
    yield "A CPU cannot show:"
    yield from (f"  - {limit}" for limit in report.limits)
    yield from (f"note: {flow(note)}" for note in report.notes)
    yield _verdict(report)


def _layout(report: RehearsalReport) -> str:
    layout = report.result.get("layout")
    if not layout:
        return ""
    sizes = ", ".join(f"{name} {layout[name]}" for name in ("tp", "pp", "cp", "dp", "ep") if layout[name] > 1)
    return f", {count(layout['ranks'], 'rank')}{f' ({sizes})' if sizes else ''}"


def _rules(findings: Sequence[Finding]) -> Iterator[str]:
    told = [finding for finding in findings if finding.severity != "info"]
    yield f"{'ok  ' if not any(f.severity in ('error', 'corruption') for f in told) else 'FAIL'} rules: " + (
        count(len(told), "finding") if told else "nothing found"
    )
    for finding in told:
        yield f"       {finding.severity} {finding.rule}: {flow(finding.message)}"


def _stage(stage: Mapping[str, Any]) -> Iterator[str]:
    name, status = stage["stage"], stage["status"]
    if status == "skipped":
        return
    if status == "failed":
        place = f" ({stage['place']})" if stage.get("place") else ""
        yield f"FAIL {name}: {flow(str(stage['message']))}{place}"
        return
    yield f"ok   {name}: {_TOLD[name](stage)} ({stage['seconds']:.1f} s)"
    for step in stage.get("steps", ()) if name == "train" else ():
        norm = "" if step["grad_norm"] is None else f", gradient norm {step['grad_norm']:.3f}"
        yield f"       step {step['step']}: loss {step['loss']:.5f}{norm}, {step['seconds']:.2f} s"


def _import(stage: Mapping[str, Any]) -> str:
    return f"Megatron-Bridge {stage['megatron_bridge']}, Megatron-Core {stage['megatron_core']}"


def _build(stage: Mapping[str, Any]) -> str:
    return f"{flow(stage['from'])}: {stage['model']}, {stage['dataset']}"


def _validate(stage: Mapping[str, Any]) -> str:
    because = _WORLD_SIZE[stage["world_size_from"]]
    return f"the real validate() accepts the config at its own size for {count(stage['world_size'], 'rank')}{because}"


_WORLD_SIZE: Final = {
    "given": "",
    "recipe": ", as many as the recipe's name says",
    "least": ", the fewest that its layout allows",
}


def _data(stage: Mapping[str, Any]) -> str:
    if stage.get("samples") is None:
        return "mock data"
    made = "made-up samples" if stage["made_up"] else "samples"
    first = "the first " if stage.get("cut") else ""
    return f"{first}{stage['samples']} {made} with {' and '.join(stage['columns'])}"


def _packing(stage: Mapping[str, Any]) -> str:
    lengths = stage["lengths"]
    parts = [f"samples of {lengths['shortest']} to {lengths['longest']} tokens, median {lengths['median']}"]
    parts += [f"{over} longer than {name} ({limit})" for name, (limit, over) in lengths["longer_than"].items() if over]
    for title, figures in (("at the config's size", stage.get("at_full_size")), ("here", stage.get("here"))):
        if figures is not None:
            parts.append(
                f"{title} {figures['sequences']} sequences in {figures['packs']} packs of {figures['pack_size']}, "
                f"{figures['efficiency']:.1%} full"
            )
    return "; ".join(parts)


def _base(stage: Mapping[str, Any]) -> str:
    return f"a checkpoint for {stage['peft']} to start from"


def _train(stage: Mapping[str, Any]) -> str:
    first, last = stage["steps"][0]["loss"], stage["steps"][-1]["loss"]
    padding = "" if stage["padding_share"] is None else f", {stage['padding_share']:.1%} of them padding"
    return (
        f"loss {first:.4f} to {last:.4f} in {count(len(stage['steps']), 'step')} of {stage['tokens_a_step']} tokens"
        f"{padding}; {stage['tokens_per_second']} tokens/s"
    )


def _save(stage: Mapping[str, Any]) -> str:
    return f"checkpoints of step {' and '.join(str(step) for step in stage['steps'])}"


def _resume(stage: Mapping[str, Any]) -> str:
    steps = [step["step"] for step in stage["steps"]]
    return f"steps {steps[0]} to {steps[-1]} repeat the run that went on, loss error {stage['loss_error']:.1e}"


_TOLD: Final = {
    "import": _import,
    "build": _build,
    "validate": _validate,
    "data": _data,
    "packing": _packing,
    "base": _base,
    "train": _train,
    "save": _save,
    "resume": _resume,
}


def _batch(batch: InspectionReport) -> Iterator[str]:
    summary = batch.summary
    bad = batch.at_least(_BAD)
    fill = f", {summary['fill']:.1%} full" if "fill" in summary else ""
    yield (
        f"{'FAIL' if bad else 'ok  '} batch: {batch.path} micro-batch of {batch.tokens} tokens in "
        f"{count(summary['sequences'], 'sequence')}{fill}, "
        f"{count(len(batch.findings), 'finding') if batch.findings else 'nothing found'}"
    )
    for finding in batch.findings:
        if finding.severity != "info":
            yield f"       {finding.severity} {finding.rule}: {flow(finding.message)}"


def _changes(changes: Sequence[Mapping[str, Any]], verbose: bool) -> Iterator[str]:
    if not changes:
        return
    yield f"Changed for the rehearsal: {count(len(changes), 'field')}{'' if verbose else ' (--verbose lists all)'}"
    for kind, title in KINDS.items():
        found = [change for change in changes if change["kind"] == kind]
        if not found:
            continue
        if verbose or kind in ("size", "layout"):
            yield f"  {title}:"
            for change in found:
                old, new = clip(flow(str(change["old"])), 60), clip(flow(str(change["new"])), 60)
                yield f"    {change['field']}: {old} -> {new}  ({flow(change['why'])})"
        else:
            yield f"  {title}: {', '.join(change['field'] for change in found)}"


def _verdict(report: RehearsalReport) -> str:
    took = f"{report.seconds:.0f} s"
    if report.failed is not None:
        return f"failed at {report.failed['stage']} after {took}"
    if not report.passed:
        return f"every stage went well in {took}, but the findings above break or corrupt a run"
    return f"rehearsed in {took}: every stage went well"
