"""The MCP tool that inspects batches and packed datasets: figures and findings in pages, the pack map as a picture."""

from __future__ import annotations

import json
import os
import re
import threading
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from mcp.types import CallToolResult, ContentBlock, ImageContent, TextContent
from pydantic import Field

from skill_run import mcp_models as models
from skill_run.errors import InputError, MissingError, SkillRunError
from skill_run.mcp_tools import MAX_EVIDENCE, MAX_FINDINGS, MESSAGE_LIMIT, evidence_of, name_of, names_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from skill_run.batch.context_parallel import Partition
    from skill_run.batch.inspect import InspectionReport
    from skill_run.batch.inspect import Sequence as BatchSequence
    from skill_run.report.finding import Finding
    from skill_run.roots import Roots

MAX_SEQUENCES: Final = 200
MAX_RANKS: Final = 32
MAX_RUNS: Final = 6
MAX_NOTES: Final = 20
# Numbers and keys of a batch that comes with the call; larger ones belong in a file.
MAX_NUMBERS: Final = 2**20
MAX_NESTING: Final = 12
TEXT_WIDTH: Final = 100

_NUMBERED: Final = re.compile(r"(.+)#(\d{1,9})", re.DOTALL)
_IN_CALL: Final = "batch"
_IN_MEMORY: Final = "<mapping>"
_CONFIG_TEXT: Final = "<text>"
# Matplotlib's settings are global, and tools run in several threads.
_DRAWING: Final = threading.Lock()


class Inspection:
    """The tool of one server. roots: what it may read; python: an interpreter with torch for .pt files, if any."""

    def __init__(self, roots: Roots, python: str | Path | None = None) -> None:
        self.roots = roots
        self.python = python

    def inspect_batch(
        self,
        path: Annotated[
            str,
            Field(
                description="Batch file (.safetensors, .npz, .json, .jsonl, .pt; FILE#N for the Nth batch in it), "
                "packed file (.parquet, .npy, .arrow), folder of packed files, or folder with one dump of each rank, "
                "in a folder the server may read."
            ),
        ] = "",
        batch: Annotated[
            dict[str, Any] | None,
            Field(
                description="A small batch itself: key (tokens, cu_seqlens, loss_mask, ...) to number, list or list of "
                "rows; or rank to batch. Give this or path, not both."
            ),
        ] = None,
        bridge: Annotated[str, Field(description="Megatron-Bridge version, such as 0.6.2 or main.")] = "",
        cp: Annotated[
            int | None,
            Field(ge=1, description="Context parallel size of the run; adds the preview of each rank's part."),
        ] = None,
        tp: Annotated[int | None, Field(ge=1, description="Tensor parallel size of the run.")] = None,
        sp: Annotated[bool | None, Field(description="Sequence parallelism is on.")] = None,
        config_path: Annotated[
            str,
            Field(description="The run's config, in a folder the server may read: gives sizes, multiples, release."),
        ] = "",
        offset: Annotated[int, Field(ge=0, description="Findings to skip: next_offset of the page before.")] = 0,
        max_findings: Annotated[int, Field(ge=1, le=MAX_FINDINGS, description="Most findings on one page.")] = 20,
        sequence_offset: Annotated[
            int, Field(ge=0, description="Sequences to skip: next_sequence_offset of the page before.")
        ] = 0,
        max_sequences: Annotated[int, Field(ge=0, le=MAX_SEQUENCES, description="Most sequences on one page.")] = 20,
        picture: Annotated[
            bool, Field(description="Add the pack map as an image, or as text where images cannot be drawn.")
        ] = True,
    ) -> Annotated[CallToolResult, models.BatchReport]:
        """See every sequence and boundary of a batch or a packed dataset, what is wrong with it, and why.

        Call it when a loss looks wrong, or for proof before the first step. `meaning` says whether the boundaries are
        physical or logical lengths. Give bridge, cp, tp and sp, or config_path: they decide more checks, and with cp
        the answer shows what each rank would get. Nothing in a file is executed or changed. Findings come worst first:
        corruption means that the run finishes with wrong training; explain_rule tells more of a rule.
        """
        if bool(path) == (batch is not None):
            raise InputError("give path or batch, and only one of them")
        report = self._report(path, batch, config_path, bridge=bridge or None, cp=cp, tp=tp, sp=sp)
        answer = _answer(report, offset, max_findings, sequence_offset, max_sequences).model_dump(mode="json")
        content: list[ContentBlock] = [TextContent(type="text", text=json.dumps(answer, ensure_ascii=False))]
        drawn = _picture(report) if picture else None
        return CallToolResult(content=content + ([drawn] if drawn else []), structured_content=answer)

    def _report(self, path: str, batch: dict[str, Any] | None, config_path: str, **run: Any) -> InspectionReport:
        from skill_run.batch.inspect import inspect_batch

        config, names = None, {}
        if config_path:
            real = self.roots.find(config_path)
            names = {str(real): config_path, _CONFIG_TEXT: config_path}
            with _named(names):
                config = _config_text(real)
        source: str | Mapping[str, Any]
        if batch is not None:
            _check_small(batch)
            source, shown = batch, _IN_CALL
            names[_IN_MEMORY] = shown
        else:
            file, number = self._find(path)
            source, shown = f"{file}{number}", path
            names = {source: path, str(file): path.removesuffix(number), **names}
            with _named(names):
                check_files(self.roots, source)
        with _named(names):
            report = inspect_batch(source, config=config, python=self.python, **run)
        return replace(report, source=shown)

    def _find(self, path: str) -> tuple[Path, str]:
        """Return the real path of a file or folder, and the `#N` after it."""
        try:
            return self.roots.find(path), ""
        except InputError:
            numbered = _NUMBERED.fullmatch(path)
            if numbered is None:
                raise
            return self.roots.find(numbered[1]), f"#{numbered[2]}"


def check_files(roots: Roots, source: str) -> None:
    """Refuse a folder whose files, or the metadata beside packed files, lead out of the roots."""
    from skill_run.batch.load import find_files
    from skill_run.pack.folder import metadata_file

    files = find_files(source).files
    beside = metadata_file(files)
    for file in (*files, *([beside] if beside else [])):
        if not roots.hold(Path(os.path.realpath(file))):
            raise InputError(f"{file} leads outside the folders that may be read ({roots})")


@contextmanager
def _named(names: Mapping[str, str]) -> Iterator[None]:
    """Let errors speak of files as they were named in the call."""
    try:
        yield
    except SkillRunError as error:
        text = str(error)
        for real, shown in names.items():
            text = text.replace(real, shown)
        raise type(error)(text) from error


def _config_text(path: Path) -> str:
    """Return a config as text, since the reader follows a launch file to the script that it starts, wherever that lies.

    The form of text is told from the text alone, so a script that only its name tells gets a first line.
    """
    from skill_run.config.read import form_of_file, form_of_text
    from skill_run.config.text import read_text
    from skill_run.config.tree import MAX_BYTES

    text = read_text(path, MAX_BYTES) + "\n"
    only_named = form_of_file(path, text) == "sbatch" != form_of_text(text)
    return f"#!/bin/bash\n{text}" if only_named else text


def _check_small(batch: Mapping[str, Any]) -> None:
    held: list[Any] = [batch]
    left, depth = MAX_NUMBERS, 0
    while held:
        if depth > MAX_NESTING:
            raise InputError(f"batch is nested deeper than {MAX_NESTING} levels, which no batch is")
        inner: list[Any] = []
        for item in held:
            parts = item.values() if isinstance(item, dict) else item
            left -= len(parts)
            if left < 0:
                raise InputError(f"batch holds more than {MAX_NUMBERS} values; save it as a file and give its path")
            inner += [part for part in parts if isinstance(part, dict | list)]
        held, depth = inner, depth + 1


def _answer(
    report: InspectionReport, offset: int, most: int, sequence_offset: int, most_sequences: int
) -> models.BatchReport:
    from skill_run.report.inspected import kind
    from skill_run.report.safe import flow, strict
    from skill_run.report.wording import counts

    figures = report.summary
    summary = {name: figures.pop(name) for name in models.BatchSummary.model_fields if name in figures}
    summary["verdict"] = flow(f"{kind(report)}; {counts(report.findings)}")
    end, last = offset + most, sequence_offset + most_sequences
    total, sequences = len(report.findings), len(report.sequences)
    return models.BatchReport(
        summary=models.BatchSummary(**summary),
        source=name_of(report.source),
        path=name_of(report.path),
        generation=name_of(report.generation),
        because=flow(report.because),
        meaning=flow(report.meaning),
        tokens=report.tokens,
        rows=report.rows,
        statistics=strict(figures),
        sequences_total=sequences,
        sequence_offset=sequence_offset,
        next_sequence_offset=last if last < sequences else None,
        sequences=[_sequence(item) for item in report.sequences[sequence_offset:last]],
        total=total,
        offset=offset,
        next_offset=end if end < total else None,
        findings=[_finding(item) for item in report.findings[offset:end]],
        cp=None if report.cp is None else _preview(report.cp),
        notes=[flow(note) for note in report.notes[:MAX_NOTES]],
    )


def _sequence(item: BatchSequence) -> models.BatchSequence:
    return models.BatchSequence(**item.to_dict())


def _finding(finding: Finding) -> models.BatchFinding:
    from skill_run.report.safe import clip, flow

    return models.BatchFinding(
        rule=finding.rule,
        severity=finding.severity,
        title=finding.title,
        message=flow(clip(finding.message, MESSAGE_LIMIT)),
        fields=names_of(finding.fields),
        fires=finding.fires,
        skill=finding.skill,
        evidence=[evidence_of(item) for item in finding.evidence[:MAX_EVIDENCE]],
        docs=finding.docs,
    )


def _preview(cut: Partition) -> models.CutPreview:
    import numpy as np

    return models.CutPreview(
        size=cut.size,
        whole=cut.whole,
        duplicated=int(cut.duplicated.size),
        lost=int(cut.lost.size),
        outside=cut.outside,
        duplicated_runs=_runs(np.sort(cut.duplicated)),
        lost_runs=_runs(np.sort(cut.lost)),
        imbalance=round(cut.imbalance, 4),
        ranks=[
            models.CutRank(
                rank=rank,
                tokens=int(indices.size),
                trained=None if cut.trained is None else cut.trained[rank],
                work=cut.work[rank],
                runs=_runs(indices),
            )
            for rank, indices in enumerate(cut.indices[:MAX_RANKS])
        ],
    )


def _runs(indices: NDArray[np.int64]) -> list[list[int]]:
    """Return the first runs of neighbouring tokens, in the order in which they are held."""
    import numpy as np

    if not indices.size:
        return []
    breaks = np.flatnonzero(np.diff(indices) != 1)[:MAX_RUNS]
    firsts = indices[np.concatenate([[0], breaks + 1])]
    lasts = indices[np.concatenate([breaks, [indices.size - 1]])]
    return np.stack([firsts, lasts + 1], axis=1)[:MAX_RUNS].tolist()  # type: ignore[no-any-return]


def _picture(report: InspectionReport) -> ImageContent | TextContent | None:
    """Return the pack map as PNG, as text without matplotlib, None when there is nothing to draw."""
    from skill_run.report.inspection import map_text
    from skill_run.report.plot import draw_plot

    try:
        with _DRAWING:
            data = draw_plot(report, "png")
    except MissingError:
        drawn = map_text(report, width=TEXT_WIDTH)
        return TextContent(type="text", text=drawn) if drawn else None
    return ImageContent(type="image", data=b64encode(data).decode("ascii"), mime_type="image/png")
