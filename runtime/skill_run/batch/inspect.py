"""`inspect_batch`: every sequence, every boundary, what is wrong and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from skill_run.batch.arrays import check_mapping
from skill_run.batch.checks import Fault, Settings, run_checks
from skill_run.batch.context_parallel import Partition, can_cut, partition
from skill_run.batch.model import Batch, Row
from skill_run.batch.recognise import STREAM_KEYS, recognise
from skill_run.bridge.release import known_releases, matches, newest_release
from skill_run.bundle.load import load_rules
from skill_run.bundle.rule import Rule
from skill_run.errors import InputError
from skill_run.report.finding import SEVERITIES, Finding, Severity

# Findings of one rule in one report; a DP rank's dictionary may hold thousands of rows with one fault.
MAX_PER_RULE: Final = 8
MAX_GROUP: Final = 65536
SENTINELS: Final = "batch-sentinels-reach-the-cut"
# Notes that may stand beside the batch in its file.
_BESIDE: Final = ("parallel", "settings", "model", "metadata")


@dataclass(frozen=True, slots=True)
class Sequence:
    """One sequence of a row. start: first token; logical and physical: lengths; trained: tokens with loss."""

    row: int
    start: int
    logical: int
    physical: int
    trained: int | None

    def to_dict(self) -> dict[str, Any]:
        """Return the sequence as JSON-ready data."""
        return {
            "row": self.row,
            "start": self.start,
            "logical": self.logical,
            "physical": self.physical,
            "trained": self.trained,
        }


@dataclass(frozen=True, slots=True)
class InspectionReport:
    """What one `inspect_batch` call found. `batch` is the recognised batch, None for a packed dataset."""

    source: str
    path: str
    generation: str
    because: str
    meaning: str
    tokens: int | None
    rows: int
    sequences: tuple[Sequence, ...]
    findings: tuple[Finding, ...]
    cp: Partition | None = None
    notes: tuple[str, ...] = ()
    statistics: Mapping[str, Any] = field(default_factory=dict)
    batch: Batch | None = None

    @property
    def summary(self) -> dict[str, Any]:
        """Counts of findings by severity, and the figures of the batch."""
        counts = Counter(finding.severity for finding in self.findings)
        sequences = [sequence for sequence in self.sequences if not self.is_filler(sequence)]
        real = sum(sequence.logical for sequence in sequences)
        trained = [sequence.trained for sequence in self.sequences if sequence.trained is not None]
        figures: dict[str, Any] = {severity: counts[severity] for severity in SEVERITIES}
        figures |= {"rows": self.rows, "sequences": len([s for s in sequences if s.physical])}
        if self.tokens:
            figures["fill"] = round(real / self.tokens, 4)
        if trained:
            figures["trained_tokens"] = sum(trained)
        return {**figures, **self.statistics}

    def is_filler(self, sequence: Sequence) -> bool:
        """Tell whether a sequence only fills up the tail of an offline pack."""
        if self.batch is None or self.batch.path != "offline_packed":
            return False
        count = self.batch.rows[sequence.row].token_count if sequence.row < len(self.batch.rows) else None
        return count is not None and sequence.start >= count

    def at_least(self, severity: Severity) -> list[Finding]:
        """Return the findings that are as bad as `severity` or worse."""
        limit = SEVERITIES.index(severity)
        return [finding for finding in self.findings if SEVERITIES.index(finding.severity) <= limit]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready data; the keys are a contract."""
        return {
            "source": self.source,
            "path": self.path,
            "generation": self.generation,
            "because": self.because,
            "meaning": self.meaning,
            "tokens": self.tokens,
            "sequences": [sequence.to_dict() for sequence in self.sequences],
            "summary": self.summary,
            "findings": [finding.to_dict() for finding in self.findings],
            "cp": None if self.cp is None else self.cp.to_dict(),
            "notes": list(self.notes),
        }


def inspect_batch(
    source: str | Path | Mapping[str, Any],
    *,
    bridge: str | None = None,
    cp: int | None = None,
    tp: int | None = None,
    sp: bool | None = None,
    config: str | Path | Mapping[str, Any] | None = None,
    python: str | Path | None = None,
) -> InspectionReport:
    """Inspect a batch, a packed dataset, or the same batch as several ranks hold it.

    source: a file, folder or glob of any supported form, or a mapping of torch tensors, numpy arrays or lists, or of a
    dataset's rows or lengths; a mapping of mappings is the same batch on several ranks. bridge: the release, which
    decides between releases that write the same keys; faults of other releases are left out then. cp, tp, sp:
    context and tensor parallel size and sequence parallelism of the run. config: the run's config in any form
    `validate_config` reads; it gives cp, tp, sp and what else the checks can use. python: an interpreter with torch,
    for .pt files.

    Raises InputError when the input cannot be read or is no batch, MissingError when a .pt file has no interpreter.
    """
    run = _run(config, bridge, cp, tp, sp)
    from skill_run.batch.load import load_source
    from skill_run.pack.facts import facts_dataset
    from skill_run.pack.inspect import inspect_dataset

    if isinstance(source, Mapping):
        described = facts_dataset(source, "<mapping>")
        if described is None:
            return inspect_mapping(source, "<mapping>", run)
        return inspect_dataset(described, "<mapping>", run, fingerprints=run.fingerprints)

    loaded = load_source(source, python=python)
    if isinstance(loaded, Mapping):
        return inspect_mapping(loaded, str(source), run)
    return inspect_dataset(loaded, str(source), run, fingerprints=run.fingerprints)


@dataclass(frozen=True, slots=True)
class Run:
    """What is known of the run a batch belongs to; None is not known.

    asked: the release was asked for, not implied by the config; pack_size and pad_multiple: packed_sequence_size and
    pad_seq_to_mult of the config, in tokens; fingerprints: those its packed data may have; micro_batch: the batch is
    what one step gets; cp_rank, dp_rank, number: of the rank that held it, and how many micro-batches it read before.
    """

    bridge: str | None = None
    cp: int | None = None
    tp: int | None = None
    sp: bool | None = None
    settings: Settings = field(default_factory=Settings)
    pack_size: int | None = None
    pad_multiple: int | None = None
    seq_length: int | None = None
    fingerprints: tuple[str, ...] = ()
    asked: bool = True
    micro_batch: bool = False
    cp_rank: int | None = None
    dp_rank: int | None = None
    number: int | None = None


def _size(value: Any, name: str) -> int | None:
    if value is None:
        return None
    if not _is_size(value):
        raise InputError(f"{name} must be a whole number from 1 to {MAX_GROUP}, not {value!r:.40}")
    return int(value)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_GROUP


def _run(config: Any, bridge: str | None, cp: int | None, tp: int | None, sp: bool | None) -> Run:
    from skill_run.bridge.version import normalise

    bridge = None if bridge is None else normalise(bridge)
    sizes = (_size(cp, "the context parallel size"), _size(tp, "the tensor parallel size"))
    if config is None:
        return Run(bridge, sizes[0], sizes[1], sp)
    from skill_run.config.model import State
    from skill_run.pack.folder import expected_fingerprints
    from skill_run.rules.validate import build_config, read_sources

    resolved = build_config(read_sources(config, bridge=bridge), bridge=bridge)

    def known(name: str, kind: type) -> Any:
        value = resolved.get(name)
        return value.value if value.state is not State.UNKNOWN and type(value.value) is kind else None

    def group(name: str) -> int | None:
        value = known(name, int)
        return value if _is_size(value) else None

    specs = "dataset.offline_packing_specs"
    # Megatron-FSDP switches average_in_collective off by itself.
    fsdp = known("ddp.use_megatron_fsdp", bool) or known("dist.use_megatron_fsdp", bool)
    return Run(
        bridge=bridge or resolved.version,
        cp=sizes[0] or group("model.context_parallel_size"),
        tp=sizes[1] or group("model.tensor_model_parallel_size"),
        sp=sp if sp is not None else known("model.sequence_parallel", bool),
        settings=Settings(
            per_token_loss=known("model.calculate_per_token_loss", bool),
            average_in_collective=False if fsdp else known("ddp.average_in_collective", bool),
            configured=True,
            experts=resolved.is_given("model.num_moe_experts"),
            hybrid=known("model.is_hybrid_model", bool),
            static_boundaries=known(f"{specs}.pad_cu_seqlens", bool),
        ),
        pack_size=known(f"{specs}.packed_sequence_size", int),
        pad_multiple=known(f"{specs}.pad_seq_to_mult", int),
        seq_length=known("dataset.seq_length", int),
        fingerprints=expected_fingerprints(resolved),
        asked=bridge is not None,
    )


def inspect_mapping(source: Mapping[str, Any], name: str, run: Run) -> InspectionReport:
    """Inspect a batch that is already in memory."""
    raw = check_mapping(source)
    ranks = _ranks(raw)
    if ranks is not None:
        from skill_run.batch.ranks import inspect_ranks

        return inspect_ranks(ranks, name, run)
    return report_on(*recognised(raw, run), name=name)


def recognised(raw: dict[str, Any], run: Run) -> tuple[Batch, Run]:
    """Return the batch in a mapping, and the run as the mapping itself completes it."""
    raw, run = unwrapped(raw, run)
    writes_legacy = run.bridge is not None and (run.asked or _fits("<=0.5", run.bridge))
    bridge = run.bridge if writes_legacy else None
    batch = recognise(raw, cp=run.cp, tp=run.tp, sp=run.sp, bridge=bridge, micro_batch=run.micro_batch)
    return batch, run


def _ranks(raw: Mapping[str, Any]) -> dict[str, dict[str, Any]] | None:
    """Return per-rank batches when the mapping is one of those, else None."""
    inner = raw.get("batches_by_rank", raw)
    if not isinstance(inner, dict) or len(inner) < 2 or "batch" in inner:
        return None
    found = {key: value for key, value in inner.items() if isinstance(value, dict)}
    return found if len(found) == len(inner) else None


def unwrapped(raw: dict[str, Any], run: Run) -> tuple[dict[str, Any], Run]:
    """Return the batch inside a capture file, and what the capture and the mapping itself say of the run."""
    info: dict[str, Any] = {}
    inner = raw.get("batch")
    if isinstance(inner, dict) and not any(raw.get(key) is not None for key in STREAM_KEYS):
        info = _table(raw, "info")
        raw = {**inner, **{key: raw[key] for key in _BESIDE if key in raw}}
    parallel = _table(raw, "parallel")
    told = {key.lower(): value for key, value in {**info, **parallel}.items()}

    def group(name: str) -> int | None:
        # A capture has rank and size of a group; a note beside a batch has the size under the group's own name.
        value = told.get(f"{name}_size", told.get(name) if parallel else None)
        return _size(value, f"the {name} size beside the batch")

    sequence_parallel = told.get("sp")
    return raw, replace(
        run if run.bridge is not None and run.asked else _captured_release(run, told.get("bridge")),
        cp=run.cp or group("cp"),
        tp=run.tp or group("tp"),
        sp=run.sp if run.sp is not None else (sequence_parallel if isinstance(sequence_parallel, bool) else None),
        settings=_settings(raw, run.settings),
        micro_batch=run.micro_batch or str(told.get("form")) == "micro_batch",
        cp_rank=_rank(told.get("cp_rank")),
        dp_rank=_rank(told.get("dp_rank")),
        number=_rank(told.get("number")),
    )


def _captured_release(run: Run, told: Any) -> Run:
    """Return the run with the release that a capture names, when it names one."""
    from skill_run.bridge.version import normalise

    try:
        return replace(run, bridge=normalise(told), asked=True) if isinstance(told, str) else run
    except InputError:
        return run


def _table(raw: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = raw.get(key)
    return value if isinstance(value, dict) else {}


def _rank(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _settings(raw: Mapping[str, Any], known: Settings) -> Settings:
    """Complete the settings by what stands beside a batch: settings, model, and the packing metadata."""
    told, model = _table(raw, "settings"), _table(raw, "model")
    per_token, static = told.get("calculate_per_token_loss"), told.get("pad_cu_seqlens")
    return replace(
        known,
        per_token_loss=per_token if isinstance(per_token, bool) else known.per_token_loss,
        static_boundaries=static if isinstance(static, bool) else known.static_boundaries,
        experts=_truth(model, "num_moe_experts", known.experts),
        hybrid=_truth(model, "hybrid", known.hybrid),
        samples_per_pack=_samples_per_pack(raw),
    )


def _truth(table: Mapping[str, Any], key: str, known: bool | None) -> bool | None:
    value = table.get(key)
    return bool(value) if key in table and (value is None or isinstance(value, int)) else known


def _samples_per_pack(raw: Mapping[str, Any]) -> int | None:
    """Return the largest max_samples_per_bin of the packing metadata that stands beside a batch."""
    metadata = raw.get("metadata")
    entries = metadata if isinstance(metadata, list) else [metadata]
    found = [entry.get("max_samples_per_bin") for entry in entries if isinstance(entry, dict)]
    return max((value for value in found if isinstance(value, int) and value > 0), default=None)


def report_on(batch: Batch, run: Run, name: str) -> InspectionReport:
    """Check a recognised batch and collect the report."""
    faults = run_checks(batch, run.settings)
    totals = [row.total for row in batch.rows if row.total is not None]
    bridge, notes = release_of(batch, run)
    cut = preview_of(batch, bridge)
    if cut is not None and bridge is None and any(fault.rule == SENTINELS for fault in faults):
        notes = (*notes, "the preview is cut as 0.5.1 and newer cut; name an older release to see what it makes of it")
    return InspectionReport(
        source=name,
        path=batch.path,
        generation=batch.generation,
        because=batch.because,
        meaning=batch.meaning,
        tokens=sum(totals) if totals else None,
        rows=len(batch.rows),
        sequences=tuple(sequence for row in batch.rows for sequence in sequences_of(batch, row)),
        findings=findings_of(faults, bridge, batch.generation),
        cp=cut,
        notes=(*batch.notes, *notes),
        batch=batch,
    )


_RELEASES: Final[Mapping[str, str]] = {"<=0.5": "<0.6", ">=0.6": ">=0.6", "main": ">=0.7.0.dev0"}


def _fits(generation: str, bridge: str) -> bool:
    return matches(_RELEASES.get(generation, "*"), bridge)


def release_of(batch: Batch, run: Run) -> tuple[str | None, tuple[str, ...]]:
    """Return the release to judge by, None when nobody named one that can have made the batch."""
    if run.bridge is None or batch.generation == "megatron-lm":
        return batch.release, ()
    if _fits(batch.generation, run.bridge):
        return run.bridge, ()
    if not run.asked:
        return batch.release, ()
    return run.bridge, (
        f"the keys are those of {batch.generation}, which is not what Megatron-Bridge {run.bridge} writes",
    )


def findings_of(faults: Iterable[Fault], bridge: str | None = None, generation: str = "unknown") -> tuple[Finding, ...]:
    """Return faults as findings, with what the rules of the card say of them, worst first.

    bridge: the release to judge by; a fault of other releases only is left out. Without it a rule speaks for the newest
    release that it applies to and that can have written the batch.
    """
    rules = {rule.id: rule for rule in load_rules()}
    found = []
    for fault in _bounded(list(faults)):
        rule = rules[fault.rule]
        if bridge is not None and not matches(rule.bridge, bridge):
            continue
        version = bridge or _newest(rule, generation)
        found.append(
            Finding(
                rule=rule.id,
                severity=rule.severity_for(version),
                title=rule.title,
                message=fault.message + (f" {rule.advice}" if rule.advice else ""),
                fields=fault.fields,
                fires=rule.fires_for(version),
                skill=rule.skill,
                evidence=tuple({key: str(value) for key, value in item.items()} for item in rule.evidence),
                docs=f"skill-run explain {rule.id}",
            )
        )
    return tuple(sorted(found, key=lambda finding: SEVERITIES.index(finding.severity)))


def _newest(rule: Rule, generation: str) -> str:
    newest = newest_release()
    candidates = [newest, *reversed(known_releases())]
    fitting = [version for version in candidates if matches(rule.bridge, version) and _fits(generation, version)]
    return next(iter(fitting), newest)


def _bounded(faults: list[Fault]) -> Iterator[Fault]:
    """Yield at most MAX_PER_RULE faults of each rule; the last one says how many are left out."""
    counts = Counter(fault.rule for fault in faults)
    seen: Counter[str] = Counter()
    for fault in faults:
        seen[fault.rule] += 1
        left = counts[fault.rule] - MAX_PER_RULE
        if seen[fault.rule] == MAX_PER_RULE and left > 0:
            yield replace(fault, message=f"{fault.message} {left} more rows have the same fault.")
        elif seen[fault.rule] <= MAX_PER_RULE:
            yield fault


def sequences_of(batch: Batch, row: Row) -> list[Sequence]:
    """Return the sequences of a row; one for the whole row when it is not packed."""
    if row.total is None and row.physical is None:
        return []
    mask = row.loss_mask if not batch.per_rank else None
    sums = None
    if mask is not None and (row.total is None or mask.size == row.total):
        sums = np.concatenate([[0], np.cumsum(np.nan_to_num(np.asarray(mask, dtype=np.float64)) > 0)])
    if row.physical is None or row.physical.trimmed.size < 2:
        length = row.total or 0
        return [Sequence(row.index, 0, length, length, int(sums[-1]) if sums is not None else None)]
    edges = row.physical.trimmed
    logical = row.logical if row.logical is not None and row.logical.trimmed.size == edges.size else row.physical
    found = []
    for start, length, real in zip(
        edges[:-1].tolist(), row.physical.lengths.tolist(), logical.lengths.tolist(), strict=True
    ):
        trained = None
        if sums is not None and 0 <= start <= start + length < sums.size:
            trained = int(sums[start + length] - sums[start])
        found.append(Sequence(row.index, start, real, length, trained))
    return found


def preview_of(batch: Batch, bridge: str | None) -> Partition | None:
    """Cut the first row for context parallelism, when the size is known and the row can be cut at all."""
    row = batch.rows[0]
    if batch.cp is None or row.total is None or not can_cut(row.total, batch.cp):
        return None
    table = row.physical
    boundaries = None if table is None else table.raw if _cuts_untrimmed(batch, bridge) else table.trimmed
    if boundaries is not None and boundaries.size < 2:
        return None
    return partition(boundaries, row.total, batch.cp, row.loss_mask if not batch.per_rank else None)


def _cuts_untrimmed(batch: Batch, bridge: str | None) -> bool:
    """Tell whether the release cuts by the boundaries with their sentinels."""
    return bridge is not None and batch.generation == "<=0.5" and matches("<0.5.1", bridge)
