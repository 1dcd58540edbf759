"""Choose the form of a report by name; only the chosen one is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from skill_run.errors import InputError
from skill_run.report.finding import Severity, ValidationReport

Format = Literal["text", "json", "sarif", "github", "junit"]
FORMATS: tuple[Format, ...] = get_args(Format)


def render(
    report: ValidationReport,
    format: str,
    *,
    color: bool = False,
    width: int = 80,
    verbose: bool = False,
    level: Severity = "corruption",
    root: Path | None = None,
) -> str:
    """Return the report in the named form, without a final newline; each form takes the options that concern it.

    color, width (columns), verbose: text; level (what counts as failed): junit; root (of relative URIs): sarif.
    Raises InputError for an unknown form.
    """
    match format:
        case "text":
            from skill_run.report.text import render_text

            return render_text(report, color=color, width=width, verbose=verbose)
        case "json":
            from skill_run.report.as_json import render_json

            return render_json(report)
        case "sarif":
            from skill_run.report.sarif import render_sarif

            return render_sarif(report, root=root)
        case "github":
            from skill_run.report.github import render_github

            return render_github(report)
        case "junit":
            from skill_run.report.junit import render_junit

            return render_junit(report, level=level)
        case _:
            raise InputError(f"Unknown format {format!r}: use one of {', '.join(FORMATS)}.")
