"""`verify`: every check passes on a whole bundle, and each of them fails on the fault that it is there for."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import skill_run
from skill_run.bundle.locate import bundle_root
from skill_run.verify.run import CHECKS, CheckResult, run_checks
from skill_run.worker.environments import RECORD, Worker

PACKAGE = Path(skill_run.__file__).parent
SKILLS = "skill_run/_bundle/skills"
RULE = f"{SKILLS}/packed-sequences-long-context/rules/offline-pad-multiple-covers-cp.yaml"
RECORDING = "skill_run/verify/data/recorded_outcomes.json.gz"


def test_results_come_one_by_one() -> None:
    assert next(run_checks()).name == next(iter(CHECKS))


def test_a_result_is_json_ready() -> None:
    assert CheckResult("cards", True, "1 card", 0.12345).to_dict() == {
        "name": "cards",
        "passed": True,
        "skipped": False,
        "detail": "1 card",
        "seconds": 0.123,
    }


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a copy of the package with its bundle inside, as a wheel lays it out."""
    root = tmp_path / "site"
    shutil.copytree(PACKAGE, root / "skill_run", ignore=shutil.ignore_patterns("__pycache__", "_bundle"))
    inside = root / "skill_run" / "_bundle"
    shutil.copytree(bundle_root() / "skills", inside / "skills")
    shutil.copy(bundle_root() / "card.yaml", inside / "card.yaml")
    return root


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env={
            **os.environ,
            "PYTHONPATH": str(site),
            "XDG_CACHE_HOME": str(site.parent / "cache"),
            "SKILL_RUN_WORKERS": str(site.parent / "workers"),
        },
        cwd=site.parent,
        capture_output=True,
        text=True,
        check=False,
    )


def check(site: Path, name: str) -> tuple[bool, str]:
    """Run one check on the copy, in a process of its own; return whether it passed and what it tells."""
    tell = "import json, sys; from skill_run.verify.run import CHECKS; print(json.dumps(CHECKS[sys.argv[1]]()))"
    done = run(site, "-c", tell, name)
    assert done.stderr == ""
    passed, detail = json.loads(done.stdout)
    return passed, detail


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")


def keep_only(site: Path, rule: Path) -> None:
    """Remove the other rules, whose examples take their time."""
    for path in site.glob(f"{SKILLS}/*/rules/*.yaml"):
        if path != rule:
            path.unlink()


def test_a_rule_that_judges_its_examples_wrong_fails_the_check_of_rules(site: Path) -> None:
    keep_only(site, site / RULE)
    assert check(site, "rules")[0]
    change(site / RULE, "% (2 * model", "% (1 * model")
    passed, detail = check(site, "rules")
    assert not passed
    assert f"{Path(RULE).name}:" in detail


def test_a_rule_that_does_not_compile_is_a_failed_check_and_not_an_error(site: Path) -> None:
    keep_only(site, site / RULE)
    change(site / RULE, "require: dataset.", "require: datasets.")
    done = run(site, "-m", "skill_run.cli", "verify", "--format", "json")
    assert (done.returncode, done.stderr) == (1, "")
    told = json.loads(done.stdout)
    assert told["passed"] is False
    failed = {result["name"]: result["detail"] for result in told["checks"] if not result["passed"]}
    assert set(failed) >= {"rules", "recorded upstream outcomes", "end to end"}
    assert "undeclared reference" in failed["end to end"]


def test_a_rule_that_its_card_does_not_name_fails_the_check_of_cards(site: Path) -> None:
    path = site / RULE
    text = path.read_text("utf-8").replace("id: offline-pad-multiple-covers-cp", "id: copied-rule")
    path.with_name("copied-rule.yaml").write_text(text, "utf-8")
    passed, detail = check(site, "cards")
    assert not passed
    assert "copied-rule" in detail


def test_a_missing_card_fails_the_check_of_cards(site: Path) -> None:
    assert check(site, "cards")[0]
    (site / SKILLS / "megatron-fsdp" / "card.yaml").unlink()
    assert check(site, "cards") == (False, "skills/megatron-fsdp/card.yaml:1: the skill has no card")


def test_an_outcome_that_is_not_what_was_recorded_fails_the_check_of_outcomes(site: Path) -> None:
    path = site / RECORDING
    recording = json.loads(gzip.decompress(path.read_bytes()))
    case = next(case for release in recording.values() for case in release["cases"] if case.get("raises"))
    del case["raises"]
    path.write_bytes(gzip.compress(json.dumps(recording).encode()))
    passed, detail = check(site, "recorded upstream outcomes")
    assert not passed
    assert detail.endswith(f"; not: {case['id']}")


def test_a_fix_that_does_not_repair_fails_the_check_from_end_to_end(site: Path) -> None:
    assert check(site, "end to end")[0]
    change(site / RULE, "specs.pad_seq_to_mult: derived.pad_multiple}", "specs.pad_seq_to_mult: 1}")
    passed, detail = check(site, "end to end")
    assert not passed
    assert not detail.endswith(" 0 faults left")


def test_parity_is_skipped_where_no_worker_is_set_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SKILL_RUN_WORKERS", str(tmp_path))
    *_, parity = run_checks()
    assert (parity.name, parity.passed, parity.skipped, parity.mark) == ("parity", True, True, "skip")
    assert "skill-run worker setup" in parity.detail


def test_a_worker_that_is_named_and_not_there_is_no_reason_to_skip(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SKILL_RUN_WORKERS", str(tmp_path))
    *_, parity = run_checks(worker="mine")
    assert (parity.passed, parity.skipped) == (False, False)
    assert "'mine'" in parity.detail


def test_parity_is_proved_where_a_worker_is_set_up(
    core_worker: Worker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / core_worker.name).mkdir()
    (tmp_path / core_worker.name / RECORD).write_text(json.dumps(core_worker.to_dict()), "utf-8")
    monkeypatch.setenv("SKILL_RUN_WORKERS", str(tmp_path))
    told: list[str] = []
    *_, parity = run_checks(worker=core_worker.name, on_event=lambda event: told.append(event["event"]))
    assert parity.passed, parity.detail
    assert f"Megatron-Core {core_worker.core}" in parity.detail
    assert "5 of 5 faults" in parity.detail
    assert "progress" in told
