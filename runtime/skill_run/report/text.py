"""The report for people: plain text, or the same lines with colours on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from skill_run.report.finding import ValidationReport
from skill_run.report.layout import INDENT, Line, Piece, findings_lines, set_lines, whole, words, worst_style
from skill_run.report.safe import flow
from skill_run.report.wording import count, needs, not_checked_summary, short, totals, upstream_verdict


def render_text(report: ValidationReport, *, color: bool = False, width: int = 80, verbose: bool = False) -> str:
    """Return the report as text, without a final newline.

    color: add terminal colours; width: columns to wrap at, though a name or a value longer than that is not broken;
    verbose: also show fields and evidence, findings of severity info in full (else their title only), and every rule
    that was not checked.
    """
    return set_lines(_lines(report, verbose), color=color, width=width)


def _lines(report: ValidationReport, verbose: bool) -> Iterator[Line]:
    yield _header(report)
    yield from findings_lines(report.findings, verbose)
    yield Line(words(upstream_verdict(report)))
    if report.upstream is not None:
        from skill_run.report.upstream import upstream_lines

        yield from upstream_lines(report.upstream, report.findings, verbose)
    if report.not_checked:
        hint = "." if verbose else "; --verbose lists them."
        yield Line(words(f"{not_checked_summary(report)}{hint}"), hang=INDENT)
    if verbose:
        yield from _not_checked(report)
    yield Line((Piece(totals(report), worst_style(report.findings)),))


def _header(report: ValidationReport) -> Line:
    bridge = report.bridge
    data = "" if bridge.release == bridge.version else f", judged by the data of {short(bridge.release)}"
    gpus = "number of GPUs not known" if report.world_size is None else count(report.world_size, "GPU")
    because = flow(bridge.because).rstrip(".")
    return Line(
        (
            Piece("Checked"),
            whole(f"{short(report.source)}:", "bold"),
            *words(f"Megatron-Bridge {short(bridge.version)}{data} ({because}); {gpus}; base: {flow(report.base)}"),
        ),
        hang=INDENT,
    )


def _not_checked(report: ValidationReport) -> Iterator[Line]:
    for entry in report.not_checked:
        said = f"{entry.severity} {short(entry.rule)}: {flow(entry.title)} (needs {needs(entry)})"
        yield Line(words(said), INDENT, INDENT)
