"""What packing made: counts, figures, files, and the settings of a config that reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from skill_run.pack.samples import SampleCounts, Tally


def counts_of(told: Mapping[str, Any]) -> SampleCounts:
    """Return the counts that `SampleCounts.to_dict` wrote."""
    fields: dict[str, Any] = {}
    for name, value in told.items():
        is_tally = isinstance(value, Mapping)
        fields[name] = Tally(value["samples"], value["tokens"], tuple(value["places"])) if is_tally else value
    return SampleCounts(**fields)


@dataclass(frozen=True, slots=True)
class SplitReport:
    """One split.

    fill: share of the token slots that hold tokens of samples; alignment: share that pads samples to the multiple;
    metadata: upstream's own figures. made: whether the file was written now or was there already.
    """

    split: str
    file: str
    made: bool
    counts: SampleCounts
    packs: int
    fill: float
    alignment: float
    sequences_mean: float
    sequences_max: int
    metadata: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the split as JSON-ready data."""
        return {
            "split": self.split,
            "file": self.file,
            "made": self.made,
            "counts": self.counts.to_dict(),
            "packs": self.packs,
            "fill": round(self.fill, 5),
            "alignment_padding": round(self.alignment, 5),
            "sequences_per_pack": {"mean": round(self.sequences_mean, 2), "max": self.sequences_max},
            "metadata": dict(self.metadata),
        }


@dataclass(frozen=True, slots=True)
class PackReport:
    """The outcome of `build_packs`. settings: canonical release names -> values for the config that reads the files."""

    bridge: str
    out: str
    pack_size: int
    pad_seq_to_mult: int
    algorithm: str
    seed: int
    splits: tuple[SplitReport, ...]
    metadata_file: str
    settings: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    commands: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready data; the keys are a contract."""
        first = self.splits[0]
        return {
            "bridge": self.bridge,
            "out": self.out,
            "pack_size": self.pack_size,
            "pad_seq_to_mult": self.pad_seq_to_mult,
            "algorithm": self.algorithm,
            "seed": self.seed,
            "samples": first.counts.samples,
            "packs": first.packs,
            "files": [split.file for split in self.splits] + [self.metadata_file],
            "splits": [split.to_dict() for split in self.splits],
            "settings": dict(self.settings),
            "notes": list(self.notes),
            "next_commands": list(self.commands),
        }


def render_packing(report: PackReport) -> str:
    """Return the report for a terminal."""
    lines: list[str] = []
    for split in report.splits:
        counts = split.counts
        lines += [
            f"{split.split}: {counts.samples:,} samples in {split.packs:,} packs of {report.pack_size} "
            f"({report.algorithm}), {split.fill:.1%} filled"
            + (f", {split.alignment:.1%} alignment padding" if split.alignment else ""),
            f"  samples in a pack: {split.sequences_mean:.1f} on average, {split.sequences_max} at most",
            f"  {'written' if split.made else 'up to date'}: {split.file}",
        ]
        for name, what in _FATES.items():
            tally = getattr(counts, name)
            if tally.samples:
                shown = ", ".join(tally.places[:3]) + (", ..." if tally.samples > 3 else "")
                lines.append(f"  {tally.samples:,} {what}: {shown}")
    lines += [f"metadata: {report.metadata_file}", "", "Settings of the config that reads it:"]
    lines += [f"  {name}={_shown(value)}" for name, value in report.settings.items()]
    lines += [f"note: {note}" for note in report.notes]
    lines += [f"next: {command}" for command in report.commands]
    return "\n".join(lines)


_FATES = {
    "truncated": "cut to the longest length",
    "dropped_long": "left out, as they are too long",
    "dropped_short": "left out, as there is nothing to predict",
    "all_masked": "have nothing to train on",
    "empty_completion": "have an empty answer",
    "off_grid": "are off the grid of the multiple, as upstream leaves them",
    "bad": "unreadable lines left out",
}


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)
