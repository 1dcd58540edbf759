"""Every real sample batch: its path and generation, and either clean or exactly the fault that its release has."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import Any

import numpy as np
import pytest
from samples import load_sample, sample_names

from skill_run import inspect_batch

# The first pattern that fits tells path and generation.
RECOGNISED = {
    "*/batch_padded*": ("padded", "unknown"),
    "*/batch_vlm_padded_from_collate": ("padded", "unknown"),
    "*/batch_direct_hf_padded": ("padded", "unknown"),
    "*/packedseqparams_*": ("packed_seq_params", "unknown"),
    "0.3.1/batch_inbatch_*": ("in_batch_packed", "<=0.5"),
    "0.6.2/batch_inbatch_*": ("in_batch_packed", ">=0.6"),
    "0.6.2/batch_energon_inbatch_*": ("in_batch_packed", ">=0.6"),
    "0.[345].?/*": ("offline_packed", "<=0.5"),
    "0.6.2/*": ("offline_packed", ">=0.6"),
    "mcore-*": ("megatron_lm_sft", "megatron-lm"),
}
SENTINELS = "batch-sentinels-reach-the-cut"
OTHER_CUT = "batch-part-is-no-ranks-cut"
LENGTHS = "batch-logical-matches-physical"
MISSING = "batch-logical-boundaries-missing"
DROPPED = "batch-last-token-dropped"
# What upstream's own code does wrong, by sample: the rule and how many rows have the fault. All others are clean.
FAULTY = {
    # A row that really ends in id 0 loses that token.
    "0.3.1/batch_inbatch_vlm_cp1_tp1": {DROPPED: 1},
    "0.3.1/batch_inbatch_vlm_cp2_tp1": {DROPPED: 1},
    "0.3.1/batch_inbatch_vlm_cp2_tp2_sp": {DROPPED: 1},
    # Rows with fewer sequences than the fullest one carry two sentinels into the cut.
    "0.3.1/batch_offline_mult4_cp2_dprank_global": {SENTINELS: 2},
    "0.3.1/batch_offline_mult4_cp2_mb1": {SENTINELS: 1},
    "0.3.1/batch_offline_mult4_cp2_mb2": {SENTINELS: 1},
    "0.3.1/getbatch_mult4_cp2_mb1_cp1": {SENTINELS: 1},
    "0.3.1/getbatch_mult4_cp2_mb1_rank0": {SENTINELS: 1, OTHER_CUT: 1},
    "0.3.1/getbatch_mult4_cp2_mb1_rank1": {SENTINELS: 1, OTHER_CUT: 1},
    "0.3.1/getbatch_mult4_cp2_mb2_rank0": {SENTINELS: 1, OTHER_CUT: 1},
    "0.3.1/getbatch_mult4_cp2_mb2_rank1": {SENTINELS: 1, OTHER_CUT: 1},
    # pad_cu_seqlens lengthens one of the two boundary arrays only.
    "0.3.1/batch_offline_mult4_padcu_dprank_global": {LENGTHS: 3},
    "0.3.1/batch_offline_mult4_padcu_mb0": {LENGTHS: 1},
    "0.3.1/batch_offline_mult4_padcu_mb1": {LENGTHS: 1},
    "0.3.1/batch_offline_mult4_padcu_mb2": {LENGTHS: 1},
    "0.3.1/batch_offline_mult4_padcu_padrow": {LENGTHS: 1},
    "0.3.1/batch_offline_mult4_padcu_single": {LENGTHS: 1},
    "0.5.1/batch_offline_mult4_padcu_dprank_global": {LENGTHS: 2},
    # Parquet packs of 0.4 are read without their multiple.
    "0.4.2/batch_offline_mult4_cp2_dprank_global": {MISSING: 3},
    "0.4.2/batch_offline_mult8_cp2_dprank_global": {MISSING: 3, SENTINELS: 1},
}


def _options(name: str) -> dict[str, Any]:
    if "cp2" not in name:
        return {}
    sequence_parallel = name.endswith("_sp")
    return {"cp": 2, "tp": 2 if sequence_parallel else 1, "sp": sequence_parallel}


def _faults(name: str, **more: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for finding in inspect_batch(load_sample(name), **_options(name), **more).at_least("warning"):
        counts[finding.rule] = counts.get(finding.rule, 0) + 1
    return counts


def test_the_table_of_faults_names_only_samples_that_exist() -> None:
    assert set(FAULTY) <= set(sample_names())


@pytest.mark.parametrize("name", sample_names())
def test_a_real_sample_is_recognised_with_a_reason(name: str) -> None:
    expected = next(found for pattern, found in RECOGNISED.items() if fnmatch(name, pattern))
    report = inspect_batch(load_sample(name), **_options(name))
    assert (report.path, report.generation) == expected
    assert report.because
    assert report.meaning


@pytest.mark.parametrize("name", sample_names())
def test_a_real_sample_is_clean_or_has_exactly_the_fault_of_its_release(name: str) -> None:
    assert _faults(name) == FAULTY.get(name, {})


@pytest.mark.parametrize("name", sample_names())
def test_a_real_sample_as_plain_lists_is_judged_like_its_arrays(name: str) -> None:
    def plain(value: Any) -> Any:
        return value.tolist() if isinstance(value, np.ndarray) else value

    lists = {key: plain(value) for key, value in load_sample(name).items()}
    report = inspect_batch(lists, **_options(name))
    arrays = inspect_batch(load_sample(name), **_options(name))
    assert [item.rule for item in report.findings] == [item.rule for item in arrays.findings]
    assert report.sequences == arrays.sequences


@pytest.mark.parametrize("name", [name for name, faults in FAULTY.items() if SENTINELS in faults])
@pytest.mark.parametrize(("bridge", "named"), [("0.3.1", True), ("0.4.2", True), ("0.5.1", False), ("0.6.2", False)])
def test_sentinels_are_a_fault_of_the_releases_that_cut_by_them_only(name: str, bridge: str, named: bool) -> None:
    assert (SENTINELS in _faults(name, bridge=bridge)) == named


@pytest.mark.parametrize("name", [name for name in sample_names() if name.endswith("padrow")])
def test_a_row_that_fills_up_the_batch_is_information_only(name: str) -> None:
    findings = inspect_batch(load_sample(name), **_options(name)).findings
    assert [item.rule for item in findings if item.severity == "info"] == ["batch-filler-row"]


@pytest.mark.parametrize("micro_batch", ["mb0", "mb1", "mb2"])
@pytest.mark.parametrize(("release", "broken"), [("0.3.1", {"mb1", "mb2"}), ("0.6.2", set())])
def test_the_parts_of_both_ranks_make_up_the_whole_row_where_upstream_cuts_right(
    release: str, broken: set[str], micro_batch: str
) -> None:
    parts = {rank: load_sample(f"{release}/getbatch_mult4_cp2_{micro_batch}_{rank}") for rank in ("rank0", "rank1")}
    whole = load_sample(f"{release}/batch_offline_mult4_cp2_{micro_batch}")
    report = inspect_batch({**parts, "whole": whole}, cp=2)
    fields = {field for item in report.findings if item.rule == "batch-ranks-agree" for field in item.fields}
    assert fields == ({"tokens", "labels", "position_ids"} if micro_batch in broken else set())
    assert report.cp is not None
    assert report.cp.whole


@pytest.mark.parametrize(("micro_batch", "broken"), [("mb0", False), ("mb1", True), ("mb2", True)])
def test_wrongly_cut_parts_are_found_without_the_whole_row_too(micro_batch: str, broken: bool) -> None:
    parts = {rank: load_sample(f"0.3.1/getbatch_mult4_cp2_{micro_batch}_{rank}") for rank in ("rank0", "rank1")}
    rules = {item.rule for item in inspect_batch(parts, bridge="0.5.1").findings}
    assert rules == ({"batch-ranks-agree", OTHER_CUT} if broken else set())


def test_the_preview_shows_what_the_release_makes_of_the_sentinels() -> None:
    batch = load_sample("0.3.1/batch_offline_mult4_cp2_mb1")
    cuts = {bridge: inspect_batch(batch, cp=2, bridge=bridge).cp for bridge in ("0.3.1", "0.5.1")}
    assert cuts["0.3.1"] is not None
    assert (cuts["0.3.1"].duplicated.size, cuts["0.3.1"].lost.size) == (4, 8)
    assert cuts["0.5.1"] is not None
    assert cuts["0.5.1"].whole
    held = load_sample("0.3.1/getbatch_mult4_cp2_mb1_rank0")["tokens"].reshape(-1)
    taken = cuts["0.3.1"].indices[0]
    inside = (taken >= 0) & (taken < 128)
    assert np.array_equal(held[inside], batch["tokens"].reshape(-1)[taken[inside]])
