"""The report as JSON; `report.schema.json` beside this file describes it."""

from __future__ import annotations

import json

from skill_run.report.finding import ValidationReport
from skill_run.report.safe import strict


def render_json(report: ValidationReport) -> str:
    """Return the report as strict JSON in ASCII; numbers that JSON lacks are the strings `NaN` and `Infinity`."""
    return json.dumps(strict(report.to_dict()), indent=2, allow_nan=False)
