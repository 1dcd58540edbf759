"""Whole dumps of real ConfigContainers, recorded from every release, moved to every other one."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from skill_run.bridge.release import known_releases
from skill_run.recipe.migrate import migrate_config
from skill_run.verify.recorded import RecordedCase, read_cases

DATA = Path(__file__).parents[2] / "cases" / "data" / "recorded_outcomes.json.gz"
EACH = 6
RECORDED = ("0.3.1", "0.4.2", "0.5.1", "0.6.2")
WAYS = [(one, other) for one in RECORDED for other in known_releases() if one != other]


@pytest.fixture(scope="module")
def dumps() -> dict[str, list[RecordedCase]]:
    cases = read_cases(DATA.read_bytes())
    # Every third, so that several kinds of dataset are among them.
    return {version: [case for case in cases if case.version == version][:: EACH // 2][:EACH] for version in RECORDED}


@pytest.mark.parametrize(("before", "after"), WAYS, ids=lambda version: version)
def test_a_dump_moves_with_every_difference_explained_and_stays(
    dumps: dict[str, list[RecordedCase]], before: str, after: str
) -> None:
    for case in dumps[before]:
        text = yaml.safe_dump(case.config)
        first = migrate_config(text, to=after, bridge=before, form="yaml")
        assert [(d.field, d.before, d.after) for d in first.differences if not d.why] == []
        assert first.report is not None
        unknown = [f.fields for f in first.report.findings if f.rule in ("renamed-field", "unknown-field")]
        listed = [item.what for item in first.manual]
        assert unknown == [] or listed
        again = migrate_config(first.text, to=after, form="yaml")
        assert again.text == first.text


@pytest.mark.parametrize("case", ["0.3.1", "0.5.1"])
def test_our_verdict_on_a_dump_is_the_same_after_the_move(dumps: dict[str, list[RecordedCase]], case: str) -> None:
    for dump in dumps[case]:
        moved = migrate_config(yaml.safe_dump(dump.config), to="0.6.2", bridge=case, form="yaml")
        assert moved.report is not None
        fired = {
            finding.rule for finding in moved.report.at_least("error") if finding.fires in ("construct", "validate")
        }
        if not dump.raises:
            assert not fired & {"renamed-field", "unknown-field", "wrong-import", "packing-specs-need-enable"}
