"""The report for people: plain text, or the same lines with colours on a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from skill_run.config.model import NOWHERE
from skill_run.report.finding import SEVERITIES, Finding, Severity, ValidationReport
from skill_run.report.safe import flow
from skill_run.report.wording import (
    count,
    explain_command,
    fixes,
    needs,
    not_checked_summary,
    short,
    totals,
    upstream_notice,
    upstream_verdict,
)

_STYLES: dict[Severity, str] = {"error": "bold red", "corruption": "bold magenta", "warning": "yellow", "info": "cyan"}
_INDENT = 2

# CI runners obey a printed line that starts with `::` or holds `##[` or `##vso[`.
_CI_COMMAND = re.compile(r"^::|##(?=\[|vso\[)")


class Piece(NamedTuple):
    """Text that stays on one line, and its style in Rich's terms."""

    text: str
    style: str = ""


class Line(NamedTuple):
    """Pieces to be set with one space between them; what does not fit goes on below, indented by `hang`."""

    pieces: tuple[Piece, ...] = ()
    indent: int = 0
    hang: int = 0


def render_text(report: ValidationReport, *, color: bool = False, width: int = 80, verbose: bool = False) -> str:
    """Return the report as text, without a final newline.

    color: add terminal colours; width: columns to wrap at, though a name or a value longer than that is not broken;
    verbose: also show fields and evidence, findings of severity info in full (else their title only), and every rule
    that was not checked.
    """
    lines = [part for line in _layout(report, verbose) for part in _wrap(line, width)]
    return "\n".join(_colored(line) if color else _plain(line) for line in lines)


def _layout(report: ValidationReport, verbose: bool) -> Iterator[Line]:
    yield _header(report)
    notes: list[Finding] = []
    for finding in sorted(report.findings, key=lambda finding: SEVERITIES.index(finding.severity)):
        if finding.severity == "info" and not verbose:
            notes.append(finding)
            continue
        yield Line()
        yield from _finding(finding, verbose)
    yield Line()
    for finding in notes:
        yield _headline(finding)
    if notes:
        yield Line()
    yield Line(_words(upstream_verdict(report)))
    if report.not_checked:
        hint = "." if verbose else "; --verbose lists them."
        yield Line(_words(f"{not_checked_summary(report)}{hint}"), hang=_INDENT)
    if verbose:
        yield from _not_checked(report)
    yield Line((_total(report),))


def _header(report: ValidationReport) -> Line:
    bridge = report.bridge
    data = "" if bridge.release == bridge.version else f", judged by the data of {short(bridge.release)}"
    gpus = "number of GPUs not known" if report.world_size is None else count(report.world_size, "GPU")
    because = flow(bridge.because).rstrip(".")
    return Line(
        (
            Piece("Checked"),
            _whole(f"{short(report.source)}:", "bold"),
            *_words(f"Megatron-Bridge {short(bridge.version)}{data} ({because}); {gpus}; base: {flow(report.base)}"),
        ),
        hang=_INDENT,
    )


def _finding(finding: Finding, verbose: bool) -> Iterator[Line]:
    yield _headline(finding)
    if finding.location is not None and finding.location != NOWHERE:
        yield Line((Piece("at"), _whole(short(str(finding.location)))), _INDENT)
    yield Line(_words(flow(finding.message)), _INDENT)
    for fix in fixes(finding):
        yield Line((_whole(f"fix: {fix}", "green"),), _INDENT)
    yield Line(_words(upstream_notice(finding)), _INDENT)
    if verbose:
        yield from _background(finding)
    yield Line((_whole(f"more: {explain_command(finding)}", "dim"),), _INDENT)


def _headline(finding: Finding) -> Line:
    head = (Piece(finding.severity, _STYLES[finding.severity]), _whole(f"{short(finding.rule)}:", "bold"))
    return Line((*head, *_words(flow(finding.title))), hang=_INDENT)


def _background(finding: Finding) -> Iterator[Line]:
    if finding.fields:
        yield Line(_words(f"fields: {', '.join(short(name) for name in finding.fields)}"), _INDENT, _INDENT)
    if finding.skill:
        yield Line(_words(f"skill: {short(finding.skill)}"), _INDENT, _INDENT)
    for item in finding.evidence:
        said = ", ".join(f"{flow(key)}: {flow(value)}" for key, value in item.items())
        yield Line(_words(f"evidence: {said}"), _INDENT, _INDENT)
    if finding.docs:
        yield Line((_whole(f"docs: {short(finding.docs)}"),), _INDENT)


def _not_checked(report: ValidationReport) -> Iterator[Line]:
    for entry in report.not_checked:
        said = f"{entry.severity} {short(entry.rule)}: {flow(entry.title)} (needs {needs(entry)})"
        yield Line(_words(said), _INDENT, _INDENT)


def _total(report: ValidationReport) -> Piece:
    worst = min((SEVERITIES.index(finding.severity) for finding in report.findings), default=None)
    return Piece(totals(report), "green" if worst is None else _STYLES[SEVERITIES[worst]])


def _whole(text: str, style: str = "") -> Piece:
    return Piece(_CI_COMMAND.sub(lambda match: f"{match[0][0]}\\x{ord(match[0][0]):02x}", text), style)


def _words(text: str) -> tuple[Piece, ...]:
    return tuple(_whole(word) for word in text.split())


def _wrap(line: Line, width: int) -> Iterator[Line]:
    """Yield `line` as lines of at most `width` columns, as far as its pieces allow."""
    row: list[Piece] = []
    indent = used = line.indent
    for piece in line.pieces:
        if row and used + 1 + len(piece.text) > width:
            yield Line(tuple(row), indent)
            row, indent = [], line.indent + line.hang
            used = indent
        used += len(piece.text) + (1 if row else 0)
        row.append(piece)
    yield Line(tuple(row), indent)


def _plain(line: Line) -> str:
    return " " * line.indent + " ".join(piece.text for piece in line.pieces) if line.pieces else ""


def _colored(line: Line) -> str:
    from rich.color import ColorSystem
    from rich.style import Style

    runs = (
        Style.parse(style).render(" ".join(piece.text for piece in run), color_system=ColorSystem.STANDARD)
        for style, run in groupby(line.pieces, key=lambda piece: piece.style)
    )
    return " " * line.indent + " ".join(runs) if line.pieces else ""
