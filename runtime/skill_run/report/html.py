"""The report on an inspected batch or dataset as one self-contained web page.

Nothing is fetched: style and script are inside, and the page's own policy forbids everything else. Every text goes
through `_text`; what a picture shows is in a table as well.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final

from skill_run import __version__
from skill_run.report.cut_map import cut_window
from skill_run.report.finding import SEVERITIES, Finding
from skill_run.report.html_lanes import Frame, cut_lanes, legend_swatch, row_lane
from skill_run.report.inspected import (
    balance_sentence,
    cut_sentence,
    figures,
    kind,
    length_histogram,
    number,
    rank_table,
    reason,
    statistics,
)
from skill_run.report.pack_map import COLOURS, MapRow, map_rows, windows
from skill_run.report.safe import flow, printable
from skill_run.report.wording import count, counts, explain_command, fixes, short, upstream_notice

if TYPE_CHECKING:
    from skill_run.batch.decode import DecodedText
    from skill_run.batch.inspect import InspectionReport

_ROWS: Final = 200
_DENSE_LANES: Final = 24
_SEQUENCES_A_LANE: Final = 48
_SEQUENCES: Final = 5000
_HELP: Final = (
    "Point at a sequence for its numbers, or reach the map with Tab and move with the arrow keys; Escape hides the "
    "numbers. The table below holds them too."
)
_FEWEST_A_LANE: Final = 20
_TABLE: Final = 1000
_RANKS: Final = 64
_FINDINGS: Final = 500
_EVIDENCE: Final = 20


def render_html(report: InspectionReport, *, tokenizer: str | Path | None = None) -> str:
    """Return the page, in ASCII.

    tokenizer: folder with tokenizer.json, to show the text of the first sequences. Raises InputError for an unreadable
    tokenizer, MissingError when the package for decoding is not installed.
    """
    style, script = _palette() + _resource("inspection.css"), _resource("inspection.js")
    parts = {
        "policy": f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; base-uri 'none'; "
        "form-action 'none'",
        "version": __version__,
        "title": _text(f"{kind(report)}: {short(report.source)}"),
        "style": style,
        "script": script,
        "body": "\n".join(_body(report, tokenizer)),
    }
    # In one pass, so that what is put in is not looked at again.
    page = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _resource("inspection.html"))
    return page.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _resource(name: str) -> str:
    return (files("skill_run.report") / name).read_text("utf-8")


def _palette() -> str:
    return f":root {{ {' '.join(f'--s{at}: {colour};' for at, colour in enumerate(COLOURS))} }}\n"


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _text(text: str) -> str:
    """Return text from anywhere as harmless markup on one line."""
    return html.escape(flow(text))


def _body(report: InspectionReport, tokenizer: str | Path | None) -> Iterator[str]:
    rows = list(map_rows(report))
    yield from _header(report, rows)
    yield from _findings(report.findings)
    yield from _map(rows)
    yield from _table_of_sequences(rows)
    yield from _preview(report, rows)
    yield from _lengths(rows)
    yield from _statistics(report)
    if tokenizer is not None:
        from skill_run.batch.decode import decode_rows

        yield from _decoded(decode_rows(report, tokenizer))
    yield from _notes(report)


def _header(report: InspectionReport, rows: Sequence[MapRow]) -> Iterator[str]:
    worst = min((SEVERITIES.index(finding.severity) for finding in report.findings), default=None)
    tone = "clean" if worst is None else SEVERITIES[worst]
    yield f"<header><h1>{_text(short(report.source))}</h1>"
    yield f'<p><span class="verdict {tone}">{_text(counts(report.findings))}</span></p>'
    yield f'<p>{_text(kind(report))} <span class="quiet">({_text(reason(report))})</span></p>'
    if report.meaning:
        yield f"<p>{_text(report.meaning)}</p>"
    yield f"</header>{_values(figures(report, rows))}"


def _values(values: Sequence[tuple[str, str]]) -> str:
    if not values:
        return ""
    cards = "".join(f"<div><dt>{_text(name)}</dt><dd>{_unbroken(_text(value))}</dd></div>" for name, value in values)
    return f'<dl class="figures">{cards}</dl>'


def _unbroken(markup: str) -> str:
    """Return markup with the parts of a number held together."""
    return re.sub(r"(?<=\d) (?=\d{3})", "&#160;", markup)


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    yield '<section aria-labelledby="findings"><h2 id="findings">Findings</h2>'
    if not findings:
        yield "<p>Nothing is wrong with what was checked.</p>"
    ordered = sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
    for finding in ordered[:_FINDINGS]:
        yield from _finding(finding)
    if len(ordered) > _FINDINGS:
        yield f"<p>{count(len(ordered) - _FINDINGS, 'more finding')}</p>"
    yield "</section>"


def _finding(finding: Finding) -> Iterator[str]:
    yield f'<article class="finding"><h3><span class="badge {finding.severity}">{finding.severity}</span> '
    yield f"{_text(finding.title)}</h3><p>{_text(finding.message)}</p><dl>"
    yield _fact("rule", [short(finding.rule)])
    if finding.fields:
        yield _fact("keys", map(short, finding.fields))
    if finding.fix:
        yield _fact("fix", fixes(finding))
    who, _, when = upstream_notice(finding).partition(": ")
    yield f"<div><dt>{_text(who)}</dt><dd>{_text(when)}</dd></div>"
    yield f"{_fact('more', [explain_command(finding)])}</dl>"
    if finding.evidence:
        said = (", ".join(f"{key}: {value}" for key, value in item.items()) for item in finding.evidence[:_EVIDENCE])
        yield f"<details><summary>Evidence</summary>{_list(said)}</details>"
    yield "</article>"


def _fact(name: str, values: Iterable[str]) -> str:
    return f"<div><dt>{name}</dt><dd>{', '.join(f'<code>{_text(value)}</code>' for value in values)}</dd></div>"


def _list(items: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{_text(item)}</li>' for item in items)}</ul>"


def _map(rows: Sequence[MapRow]) -> Iterator[str]:
    shown = rows[:_ROWS]
    if not shown:
        return
    parts = [(row, window) for row in shown for window in windows(row, len(shown), _SEQUENCES_A_LANE)]
    fair = max(_FEWEST_A_LANE, _SEQUENCES // len(parts))
    span = max(end - start for _, (start, end) in parts)
    yield '<section aria-labelledby="map"><h2 id="map">Pack map</h2>'
    yield _legend(shown)
    yield f'<p class="quiet">{_HELP}</p>'
    yield f'<div role="grid" aria-label="Pack map" class="map{_dense(len(parts))}">'
    for row, (start, end) in parts:
        yield row_lane(row, Frame(start, end, span), fair)
    yield f"</div>{_scale(0, span)}"
    if len(rows) > len(shown):
        yield f"<p>{count(len(rows) - len(shown), 'more row')} not drawn.</p>"
    yield "</section>"


def _dense(lanes: int) -> str:
    return " dense" if lanes > _DENSE_LANES else ""


def _scale(start: int, end: int) -> str:
    return f'<p class="scale" aria-hidden="true"><span>{number(start)}</span><span>{number(end)} tokens</span></p>'


def _legend(rows: Sequence[MapRow]) -> str:
    known = any(row.masked is not None for row in rows)
    entries = [("s0", "sequence, trained tokens" if known else "sequence (no loss mask: trained tokens are not known)")]
    if known:
        entries.append(("veil", "tokens without loss"))
    if any(row.padding.size for row in rows):
        entries.append(("hatch", "padding"))
    if any(row.faulty.size for row in rows):
        entries.append(("faulty", "padding that is trained"))
    if any(row.loose.size for row in rows):
        entries.append(("loose", "in no sequence"))
    entries.append(("tick", "boundary"))
    if any(row.broken for row in rows):
        entries.append(("snag", "broken boundary"))
    return (
        f'<ul class="legend">{"".join(f"<li>{legend_swatch(name)}{_text(said)}</li>" for name, said in entries)}</ul>'
    )


def _table_of_sequences(rows: Sequence[MapRow]) -> Iterator[str]:
    total = sum(len(row.numbers) for row in rows)
    if not total:
        return
    head = ("row", "sequence", "start", "logical", "physical", "trained")
    lines: list[tuple[str, ...]] = []
    for row in rows:
        for at in range(min(len(row.numbers), _TABLE - len(lines))):
            name = f"{row.numbers[at]}{' (filler)' if row.starts[at] >= row.filler else ''}"
            trained = str(row.trained[at]) if row.trained[at] >= 0 else "-"
            values = (row.starts[at], row.logical[at], row.physical[at])
            lines.append((str(row.index), name, *map(str, values), trained))
    left = f"<p>{count(total - len(lines), 'more sequence')} not listed.</p>" if total > len(lines) else ""
    yield f"<details><summary>Table of sequences ({total})</summary>{_table(head, lines, 'Sequences')}{left}</details>"


def _table(head: Sequence[str], lines: Sequence[Sequence[str]], title: str) -> str:
    """Return a table that scrolls inside its frame when it is wider than the page."""
    top = "".join(f'<th scope="col">{_text(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{_text(line[0])}</th>{"".join(f"<td>{_text(cell)}</td>" for cell in line[1:])}</tr>'
        for line in lines
    )
    heading = f"<thead><tr>{top}</tr></thead>" if head else ""
    frame = f'<div class="scroll" role="region" tabindex="0" aria-label="{_text(title)}">'
    return f"{frame}<table>{heading}<tbody>{body}</tbody></table></div>"


def _preview(report: InspectionReport, rows: Sequence[MapRow]) -> Iterator[str]:
    cut = report.cp
    if cut is None:
        return
    yield '<section aria-labelledby="cut"><h2 id="cut">Context parallel preview</h2>'
    yield f"<p>{_text(cut_sentence(report))} {_text(balance_sentence(cut))}</p>"
    if rows:
        start, end = cut_window(cut, rows[0])
        if (start, end) != (0, rows[0].total):
            yield f'<p class="quiet">Drawn are the tokens from {number(start)} to {number(end)}.</p>'
        yield f'<div role="grid" aria-label="Tokens of each rank" class="map{_dense(min(cut.size, _RANKS))}">'
        yield from cut_lanes(cut, rows[0], Frame(start, end, end - start), _RANKS)
        yield f"</div>{_scale(start, end)}"
    head, *lines = rank_table(cut)
    yield _table(head, lines[:_RANKS], "Tokens and work of each rank")
    if cut.size > _RANKS:
        yield f"<p>{count(cut.size - _RANKS, 'more rank')} not shown.</p>"
    yield "</section>"


def _lengths(rows: Sequence[MapRow]) -> Iterator[str]:
    bars = length_histogram(rows)
    if bars:
        yield f'<section aria-labelledby="lengths"><h2 id="lengths">Logical lengths</h2>{_bars(bars)}</section>'


def _bars(bars: Sequence[tuple[str, int]]) -> str:
    most = max(value for _, value in bars) or 1
    lines = "".join(
        f'<tr><th scope="row">{_text(name)}</th><td><svg aria-hidden="true"><rect class="s0" height="100%" '
        f'width="{100 * value / most:.2f}%"/></svg></td><td>{number(value)}</td></tr>'
        for name, value in bars
    )
    return f'<table class="bars"><tbody>{lines}</tbody></table>'


def _statistics(report: InspectionReport) -> Iterator[str]:
    found = statistics(report)
    if not (found.values or found.histograms or found.tables):
        return
    yield f'<section aria-labelledby="statistics"><h2 id="statistics">Statistics</h2>{_values(found.values)}'
    for title, bars in found.histograms.items():
        if bars:
            yield f"<h3>{_text(title)}</h3>{_bars(bars)}"
    for title, pairs in found.tables.items():
        yield f"<h3>{_text(title)}</h3>{_table((), pairs, title)}"
    yield "</section>"


def _decoded(decoded: DecodedText) -> Iterator[str]:
    yield '<section aria-labelledby="text"><h2 id="text">Text</h2>'
    yield "<p>Marked text is what the model is trained to write.</p>"
    for sequence in decoded.sequences:
        said = "".join(
            f"<mark>{_lines_of(piece.text)}</mark>" if piece.trained else _lines_of(piece.text)
            for piece in sequence.pieces
        )
        end = f' <span class="quiet">({count(sequence.left_out, "more token")})</span>' if sequence.left_out else ""
        yield f"<h3>row {sequence.row}, sequence {sequence.number}</h3>"
        yield f'<p class="said" dir="auto">{said}{end}</p>'
    if decoded.left_out:
        yield f"<p>{count(decoded.left_out, 'more sequence')} not shown.</p>"
    yield "</section>"


def _lines_of(text: str) -> str:
    return html.escape("\n".join(printable(line) for line in text.split("\n")))


def _notes(report: InspectionReport) -> Iterator[str]:
    if report.notes:
        yield f'<section aria-labelledby="notes"><h2 id="notes">Notes</h2>{_list(report.notes)}</section>'
    yield f'<footer><p class="quiet">skill-run {__version__}</p></footer>'
