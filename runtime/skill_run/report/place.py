"""Which file and line a finding is shown at."""

from __future__ import annotations

import os.path

from skill_run.config.model import Location
from skill_run.report.finding import Finding, ValidationReport
from skill_run.report.outcome import Outcome


def place_of(finding: Finding, report: ValidationReport | Outcome) -> Location | None:
    """Return the finding's place with its file; for one without a place the whole source, if that is a file.

    Services that show findings beside the code drop those without a file.
    """
    where = finding.location
    if where is not None and where.file:
        return where
    return Location(report.source) if os.path.isfile(report.source) else None
