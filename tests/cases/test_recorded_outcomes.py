"""A thousand real configs of four releases: our verdict against what the real ConfigContainer.validate() did."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from skill_run.report.finding import ValidationReport
from skill_run.rules.validate import bundle_rules, judge
from skill_run.verify.recorded import RecordedCase, read_cases

DATA = Path(__file__).parent / "data" / "recorded_outcomes.json.gz"
VERSIONS = ("0.3.1", "0.4.2", "0.5.1", "0.6.2")
AGREEMENT = 0.995

# What the real code said first -> the rule of ours that says it.
REASONS = {
    r"PEFT requires a pretrained checkpoint": "peft-needs-pretrained-checkpoint",
    r"Micro batch size should be 1 when training with packed": "offline-packing-needs-micro-batch-1",
    r"micro_batch_size should be greater than 1 when using": "in-batch-packing-needs-two-rows",
    r"calculate_per_token_loss must be True": "cp-sft-needs-per-token-loss",
    r"average_in_collective must be False": "cp-sft-without-average-in-collective",
    r"Gloo process groups are not supported": "decentralized-groups-without-gloo",
    r"world size \(\d+\) is not divisible": "world-size-divisible",
    r"Sequence length must be divisible by 2 \*": "seq-length-multiple-of-2cp",
    r"sequence length configuration in model config and dataset config match": "seq-lengths-equal",
    r"Cannot use sequence parallelism without tensor": "sequence-parallel-needs-tensor-parallel",
    r"recompute_granularity: full so recompute_method": "full-recompute-needs-method",
    r"num_query_groups \(\d+\) must be a multiple or divisor": "tp-fits-query-groups",
    r"hierarchical_context_parallel_sizes must be set": "hierarchical-cp-needs-sizes",
    r"Product of hierarchical_context_parallel_sizes": "hierarchical-cp-sizes-product",
    r"eval_global_batch_size \(\d+\) must be divisible": "global-batch-divisible",
    r"pad_cu_seqlens=True requires dataset pad_to_max_length": "pad-cu-seqlens-needs-pad-to-max",
    r"enable_offline_packing must be True when": "packing-specs-need-enable",
    r"seq_length must be divisible by the CP/SP collate": "seq-length-collate-multiple",
    r"packed_sequence_size must be greater than 0": "packed-size-positive",
}


@pytest.fixture(scope="module")
def judged() -> dict[str, list[tuple[RecordedCase, ValidationReport]]]:
    found: dict[str, list[tuple[RecordedCase, ValidationReport]]] = {version: [] for version in VERSIONS}
    for case in read_cases(DATA.read_bytes()):
        report = judge(case.config, rules=bundle_rules(), bridge=case.version, world_size=case.world_size)
        found[case.version].append((case, report))
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_our_verdict_on_upstreams_validate_agrees(
    judged: dict[str, list[tuple[RecordedCase, ValidationReport]]], version: str
) -> None:
    pairs = judged[version]
    misses = {
        case.id: (case.message or "accepted", report.upstream_validate)
        for case, report in pairs
        if report.upstream_validate != ("raises" if case.raises else "passes")
    }
    assert len(pairs) == 250
    assert 1 - len(misses) / len(pairs) >= AGREEMENT, misses


@pytest.mark.parametrize("version", VERSIONS)
def test_an_accepted_config_has_no_error_that_upstream_would_have_raised(
    judged: dict[str, list[tuple[RecordedCase, ValidationReport]]], version: str
) -> None:
    wrong = {
        case.id: finding.rule
        for case, report in judged[version]
        if not case.raises
        for finding in report.findings
        if finding.severity == "error" and finding.fires in ("construct", "validate")
    }
    assert wrong == {}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_reason_upstream_gives_first_is_among_our_findings(
    judged: dict[str, list[tuple[RecordedCase, ValidationReport]]], version: str
) -> None:
    missing = {}
    for case, report in judged[version]:
        if not case.raises:
            continue
        rule = next((rule for pattern, rule in REASONS.items() if re.search(pattern, case.message)), None)
        assert rule is not None, case.message
        if rule not in {finding.rule for finding in report.findings}:
            missing[case.id] = (rule, case.message)
    assert missing == {}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_full_dump_tells_its_own_release(version: str) -> None:
    cases = [case for case in read_cases(DATA.read_bytes()) if case.version == version][::10]
    told = {case.id: judge(case.config, rules=bundle_rules()).bridge.release for case in cases}
    assert set(told.values()) == {version}


@pytest.mark.parametrize("version", VERSIONS)
def test_real_dumps_hold_no_name_that_is_reported_as_unknown(
    judged: dict[str, list[tuple[RecordedCase, ValidationReport]]], version: str
) -> None:
    reported = {
        finding.message
        for _, report in judged[version]
        for finding in report.findings
        if finding.rule in ("unknown-field", "renamed-field")
    }
    assert reported == set()
