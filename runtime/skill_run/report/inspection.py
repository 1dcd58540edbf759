"""The report on an inspected batch or dataset, in every form that is text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from skill_run.errors import InputError
from skill_run.report.finding import Severity
from skill_run.report.inspected import (
    balance_sentence,
    cut_sentence,
    figures,
    kind,
    length_histogram,
    rank_table,
    reason,
    statistics,
)
from skill_run.report.layout import INDENT, Line, Piece, findings_lines, set_lines, whole, words, worst_style
from skill_run.report.pack_map import MapRow, cells, map_rows, windows
from skill_run.report.render import FORMATS
from skill_run.report.safe import flow, printable, strict
from skill_run.report.wording import count, counts, short

if TYPE_CHECKING:
    from skill_run.batch.decode import DecodedText
    from skill_run.batch.inspect import InspectionReport

_LETTERS: Final = 26
_MAP_ROWS: Final = 32
_ROW_WIDTH: Final = 20
_SEQUENCES_A_LINE: Final = 16
_TABLE: Final = 20
_TABLE_VERBOSE: Final = 10_000
_RANKS: Final = 64
_BAR: Final = 40
_PADDING, _LOOSE, _FAULTY, _SEVERAL, _BOUNDARY = ".?!#|"
# A boundary takes the place of the sequence's first column, so that short ones keep their letter instead.
_SHORTEST_WITH_BOUNDARY: Final = 3


def render_inspection(
    report: InspectionReport,
    format: str,
    *,
    color: bool = False,
    width: int = 80,
    verbose: bool = False,
    level: Severity = "corruption",
    root: Path | None = None,
    tokenizer: str | Path | None = None,
) -> str:
    """Return the report in the named form, without a final newline; each form takes the options that concern it.

    color, width (columns), verbose, tokenizer (folder with tokenizer.json, to show the text): text; level (what counts
    as failed): junit; root (of relative URIs): sarif. Raises InputError for an unknown form or an unreadable tokenizer,
    MissingError when the package for decoding is not installed.
    """
    match format:
        case "text":
            return set_lines(_lines(report, width, verbose, tokenizer), color=color, width=width)
        case "json":
            return json.dumps(strict(report.to_dict()), indent=2, allow_nan=False)
        case "sarif":
            from skill_run.report.outcome import of_inspection
            from skill_run.report.sarif import sarif_log

            return sarif_log(of_inspection(report), root=root)
        case "github":
            from skill_run.report.github import github_commands
            from skill_run.report.outcome import of_inspection

            return github_commands(of_inspection(report))
        case "junit":
            from skill_run.report.junit import junit_suite
            from skill_run.report.outcome import of_inspection

            return junit_suite(of_inspection(report), level=level)
        case _:
            raise InputError(f"Unknown format {format!r}: use one of {', '.join(FORMATS)}.")


def map_text(report: InspectionReport, *, width: int) -> str:
    """Return the pack map alone, or a dataset's statistics and histograms; empty when there is nothing to draw."""
    lines = [*_map(list(map_rows(report)), width), *_statistics(report)]
    return set_lines(lines, color=False, width=width).strip("\n")


def _lines(report: InspectionReport, width: int, verbose: bool, tokenizer: str | Path | None) -> Iterator[Line]:
    rows = list(map_rows(report))
    yield from _header(report, rows)
    yield from _map(rows, width)
    yield from _statistics(report)
    yield from _sequences(rows, verbose)
    yield from _preview(report)
    if tokenizer is not None:
        from skill_run.batch.decode import decode_rows

        yield from _text(decode_rows(report, tokenizer))
    yield from findings_lines(report.findings, verbose)
    for note in report.notes:
        yield Line(words(f"note: {flow(note)}"), hang=INDENT)
    yield Line((Piece(counts(report.findings), worst_style(report.findings)),))


def _header(report: InspectionReport, rows: Sequence[MapRow]) -> Iterator[Line]:
    yield Line(
        (
            Piece("Inspected"),
            whole(f"{short(report.source)}:", "bold"),
            *words(f"{kind(report)} ({reason(report)})"),
        ),
        hang=INDENT,
    )
    if report.meaning:
        yield Line(words(flow(report.meaning)), INDENT, INDENT)
    found = tuple(whole(f"{name} {value}") for name, value in figures(report, rows))
    if found:
        yield Line(tuple(Piece(f"{piece.text},") for piece in found[:-1]) + found[-1:], INDENT, INDENT)


def _map(rows: Sequence[MapRow], width: int) -> Iterator[Line]:
    shown = rows[:_MAP_ROWS]
    if not shown:
        return
    parts = [(row, window) for row in shown for window in windows(row, len(shown), _SEQUENCES_A_LINE)]
    names = [
        f"row {row.index}" + (f" from {start}" if (start, end) != (0, row.total) else "") for row, (start, end) in parts
    ]
    head = max(map(len, names)) + 1
    longest = max(end - start for _, (start, end) in parts)
    per_column = -(-longest // max(_ROW_WIDTH, width - INDENT - head))
    drawn = [_drawn(row, window, per_column) for row, window in parts]
    yield Line()
    yield Line(words(_legend(drawn, per_column, known=any(row.masked is not None for row in shown))), hang=INDENT)
    for name, line in zip(names, drawn, strict=True):
        yield Line((whole(f"{name:<{head}}{line}"),), INDENT)
    if len(rows) > len(shown):
        yield Line(words(f"{count(len(rows) - len(shown), 'more row')} not drawn"), INDENT)


def _drawn(row: MapRow, window: tuple[int, int], per_column: int) -> str:
    import numpy as np

    start, end = window
    columns = -(-(end - start) // per_column)
    edges = np.minimum(start + np.arange(columns + 1, dtype=np.int64) * per_column, end)
    found = cells(row, edges)
    letters = ord("A") + np.append(row.numbers, 0)[found["owner"]] % _LETTERS
    if found["masked"] is not None:
        letters = letters + found["masked"] * (ord("a") - ord("A"))
    wide = row.ends - row.starts >= _SHORTEST_WITH_BOUNDARY * per_column
    begins_wide = found["begins"] & np.append(wide, False)[found["owner"]]
    begins_wide[0] = False
    for here, symbol in (
        (found["padding"], _PADDING),
        (begins_wide, _BOUNDARY),
        (found["loose"] | (found["owner"] < 0), _LOOSE),
        (found["several"], _SEVERAL),
        (found["faulty"], _FAULTY),
    ):
        letters = np.where(here, ord(symbol), letters)
    return "".join(map(chr, letters.tolist()))


def _legend(drawn: Sequence[str], per_column: int, *, known: bool) -> str:
    used = set("".join(drawn))
    said = ["A trained", "a not trained"] if known else ["A a sequence"]
    meanings = {
        _PADDING: "padding",
        _BOUNDARY: "boundary",
        _SEVERAL: "several sequences",
        _LOOSE: "in no sequence",
        _FAULTY: "padding that is trained",
    }
    said += [f"{symbol} {meaning}" for symbol, meaning in meanings.items() if symbol in used]
    return f"Map, {count(per_column, 'token')} a column: {', '.join(said)}"


def _statistics(report: InspectionReport) -> Iterator[Line]:
    found = statistics(report)
    if found.values:
        yield Line()
        yield from _table([(name, value) for name, value in found.values], left=1)
    for title, pairs in found.tables.items():
        yield Line()
        yield Line(words(title))
        yield from _table(pairs, left=1)
    for title, bars in found.histograms.items():
        yield Line()
        yield Line(words(title))
        most = max((value for _, value in bars), default=0)
        yield from _table([(name, str(value), "#" * _bar(value, most)) for name, value in bars], left=0)


def _bar(value: int, most: int) -> int:
    return -(-value * _BAR // most) if value else 0


def _sequences(rows: Sequence[MapRow], verbose: bool) -> Iterator[Line]:
    limit = _TABLE_VERBOSE if verbose else _TABLE
    total = sum(len(row.numbers) for row in rows)
    if not total:
        return
    table: list[tuple[str, ...]] = [("row", "sequence", "letter", "start", "logical", "physical", "trained")]
    for row in rows:
        for at in range(min(len(row.numbers), limit + 1 - len(table))):
            table.append(_sequence(row, at))
    yield Line()
    yield from _table(table)
    left = total - len(table) + 1
    if left:
        hint = "" if verbose else "; --verbose lists them"
        yield Line(words(f"{count(left, 'more sequence')}{hint}"), INDENT)
    said = ", ".join(f"{name}: {found}" for name, found in length_histogram(rows) if found)
    if said:
        yield Line(words(f"logical lengths: {said}"), INDENT, INDENT)


def _sequence(row: MapRow, at: int) -> tuple[str, ...]:
    name = int(row.numbers[at])
    letter = "filler" if row.starts[at] >= row.filler else chr(ord("A") + name % _LETTERS)
    trained = str(row.trained[at]) if row.trained[at] >= 0 else "-"
    start = row.starts[at]
    return (str(row.index), str(name), letter, str(start), str(row.logical[at]), str(row.physical[at]), trained)


def _preview(report: InspectionReport) -> Iterator[Line]:
    cut = report.cp
    if cut is None:
        return
    yield Line()
    yield Line(words(f"{cut_sentence(report)} {balance_sentence(cut)}"), hang=INDENT)
    yield from _table(rank_table(cut)[: _RANKS + 1])
    if cut.size > _RANKS:
        yield Line(words(f"{count(cut.size - _RANKS, 'more rank')} not listed"), INDENT)


def _table(lines: Sequence[tuple[str, ...]], left: int = 0) -> Iterator[Line]:
    """Yield columns set right, the first `left` ones and bars (a last column of `#`) set left."""
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))] if lines else []
    for line in lines:
        said = [
            f"{cell:<{size}}" if at < left or cell.startswith("#") else f"{cell:>{size}}"
            for at, (cell, size) in enumerate(zip(line, widths, strict=True))
        ]
        yield Line((whole("  ".join(said).rstrip()),), INDENT)


def _text(decoded: DecodedText) -> Iterator[Line]:
    yield Line()
    yield Line(words("Text; what is between [[ and ]] is what the model is trained to write:"), hang=INDENT)
    for sequence in decoded.sequences:
        said = "".join(f"[[{piece.text}]]" if piece.trained else piece.text for piece in sequence.pieces)
        end = f" ({count(sequence.left_out, 'more token')})" if sequence.left_out else ""
        yield Line(words(f"row {sequence.row}, sequence {sequence.number}: {printable(said)}{end}"), INDENT, INDENT)
    if decoded.left_out:
        yield Line(words(f"{count(decoded.left_out, 'more sequence')} not shown"), INDENT)
