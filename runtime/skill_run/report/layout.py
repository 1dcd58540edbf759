"""Lines of text for people: pieces with styles, wrapped to a width, and how findings are set in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from skill_run.config.model import NOWHERE
from skill_run.report.finding import SEVERITIES, Finding, Severity
from skill_run.report.safe import flow
from skill_run.report.wording import explain_command, fixes, short, upstream_notice

_STYLES: dict[Severity, str] = {"error": "bold red", "corruption": "bold magenta", "warning": "yellow", "info": "cyan"}
INDENT = 2

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


def set_lines(lines: Iterable[Line], *, color: bool, width: int) -> str:
    """Return lines as text without a final newline, wrapped at `width` columns, with terminal colours if asked."""
    parts = (part for line in lines for part in _wrap(line, width))
    return "\n".join(_colored(line) if color else _plain(line) for line in parts)


def whole(text: str, style: str = "") -> Piece:
    """Return text as one piece that no CI runner takes for a command."""
    return Piece(_CI_COMMAND.sub(lambda match: f"{match[0][0]}\\x{ord(match[0][0]):02x}", text), style)


def words(text: str) -> tuple[Piece, ...]:
    """Return each word of a text as a piece."""
    return tuple(whole(word) for word in text.split())


def findings_lines(findings: Iterable[Finding], verbose: bool) -> Iterator[Line]:
    """Yield findings, worst first, each after an empty line; one more empty line follows them.

    verbose: also their fields and evidence, and those of severity info in full; else these are a title each.
    """
    notes: list[Finding] = []
    for finding in sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)):
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


def worst_style(findings: Iterable[Finding]) -> str:
    """Return the style of the worst finding, green if there is none."""
    worst = min((SEVERITIES.index(finding.severity) for finding in findings), default=None)
    return "green" if worst is None else _STYLES[SEVERITIES[worst]]


def _finding(finding: Finding, verbose: bool) -> Iterator[Line]:
    yield _headline(finding)
    if finding.location is not None and finding.location != NOWHERE:
        yield Line((Piece("at"), whole(short(str(finding.location)))), INDENT)
    yield Line(words(flow(finding.message)), INDENT)
    for fix in fixes(finding):
        yield Line((whole(f"fix: {fix}", "green"),), INDENT)
    yield Line(words(upstream_notice(finding)), INDENT)
    if verbose:
        yield from _background(finding)
    yield Line((whole(f"more: {explain_command(finding)}", "dim"),), INDENT)


def _headline(finding: Finding) -> Line:
    head = (Piece(finding.severity, _STYLES[finding.severity]), whole(f"{short(finding.rule)}:", "bold"))
    return Line((*head, *words(flow(finding.title))), hang=INDENT)


def _background(finding: Finding) -> Iterator[Line]:
    if finding.fields:
        yield Line(words(f"fields: {', '.join(short(name) for name in finding.fields)}"), INDENT, INDENT)
    if finding.skill:
        yield Line(words(f"skill: {short(finding.skill)}"), INDENT, INDENT)
    for item in finding.evidence:
        said = ", ".join(f"{flow(key)}: {flow(value)}" for key, value in item.items())
        yield Line(words(f"evidence: {said}"), INDENT, INDENT)
    if finding.docs:
        yield Line((whole(f"docs: {short(finding.docs)}"),), INDENT)


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
