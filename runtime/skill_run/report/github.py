"""The report as GitHub workflow commands, which become annotations on the lines of the files."""

from __future__ import annotations

from skill_run.config.model import Location
from skill_run.report.finding import Finding, Severity, ValidationReport
from skill_run.report.outcome import Outcome, of_validation
from skill_run.report.place import place_of
from skill_run.report.safe import flow
from skill_run.report.wording import details, short

_COMMANDS: dict[Severity, str] = {"error": "error", "corruption": "error", "warning": "warning", "info": "notice"}


def render_github(report: ValidationReport) -> str:
    """Return one workflow command a line: the findings, then a notice if rules were not checked."""
    return github_commands(of_validation(report))


def github_commands(outcome: Outcome) -> str:
    """Return one workflow command a line: the findings, then a notice if rules were not checked."""
    commands = [
        _command(_COMMANDS[finding.severity], _properties(finding, place_of(finding, outcome)), details(finding))
        for finding in outcome.findings
    ]
    if outcome.unchecked:
        commands.append(_command("notice", {"title": "Rules not checked"}, [outcome.unchecked]))
    return "\n".join(commands)


def _properties(finding: Finding, where: Location | None) -> dict[str, str]:
    properties = {}
    if where is not None and where.file:
        properties["file"] = short(where.file)
        if where.line is not None:
            properties["line"] = str(where.line)
            if where.column is not None:
                properties["col"] = str(where.column)
    properties["title"] = f"{finding.severity} {short(finding.rule)}: {flow(finding.title)}"
    return properties


def _command(name: str, properties: dict[str, str], lines: list[str]) -> str:
    listed = ",".join(f"{key}={_escape_property(value)}" for key, value in properties.items())
    return f"::{name} {listed}::{_escape_data(chr(10).join(lines))}"


def _escape_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")
