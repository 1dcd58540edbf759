"""What is asked of the worker: layouts, shape and lengths from options, config and data; and what is refused."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from skill_run.errors import InputError, MissingError
from skill_run.verify.lengths import Packs
from skill_run.verify.parity import CONTROLS, ParityOptions, ParityReport, prove_parity, requested
from skill_run.verify.shape import Shape
from skill_run.worker.environments import RECORD, Worker

RECIPE = "qwen3_8b_sft_8gpu_h100_bf16_32k_config"
CONFIG = """\
model:
  num_layers: 4
  hidden_size: 256
  num_attention_heads: 8
  num_query_groups: 2
  ffn_hidden_size: 512
  context_parallel_size: 4
  tensor_model_parallel_size: 2
  sequence_parallel: true
  cp_comm_type: a2a
"""


def layouts(**options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = requested(ParityOptions(**options))["layouts"]
    return found


def test_by_default_cp_2_is_tried_by_gathering_and_by_the_ring_with_every_control() -> None:
    request = requested(ParityOptions())
    assert [(each["cp"], each["cp_comm_type"]) for each in request["layouts"]] == [(2, "all_gather"), (2, "p2p")]
    assert request["controls"] == list(CONTROLS)
    assert (request["dtype"], request["leak"], request["pad_seq_to_mult"]) == ("float64", True, 4)
    assert json.loads(json.dumps(request)) == request


def test_a_config_gives_shape_and_layout_and_its_own_way_of_travelling_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "conf.yaml"
    path.write_text(CONFIG, "utf-8")
    request = requested(ParityOptions(config=path))
    assert [each["cp_comm_type"] for each in request["layouts"]] == ["a2a", "all_gather", "p2p"]
    assert all((each["cp"], each["tp"], each["sp"]) == (2, 2, True) for each in request["layouts"])
    model = request["model"]
    assert model["num_attention_heads"] == 4 * model["num_query_groups"]
    # Heads must be divisible by TP and, where heads travel, by CP.
    assert model["num_query_groups"] % 4 == 0


def test_a_recipe_stands_in_for_a_config() -> None:
    assert layouts(recipe=RECIPE)[0]["cp_comm_type"] == "a2a"


def test_options_go_before_the_config(tmp_path: Path) -> None:
    path = tmp_path / "conf.yaml"
    path.write_text(CONFIG, "utf-8")
    only = layouts(config=path, cp=4, tp=1, sp=False, comm_types=("p2p",))
    assert [(each["cp"], each["tp"], each["cp_comm_type"]) for each in only] == [(4, 1, "p2p")]


def test_on_a_gpu_the_precision_is_that_of_the_attention_kernels() -> None:
    assert requested(ParityOptions(device="cuda"))["dtype"] == "bfloat16"
    assert requested(ParityOptions(device="cuda", dtype="float32"))["dtype"] == "float32"


def test_without_context_parallelism_there_is_one_layout() -> None:
    assert len(layouts(cp=1, tp=2)) == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"cp": 0}, "--cp must be at least 1"),
        ({"cp": 4, "tp": 4}, "16 ranks"),
        ({"dtype": "float16"}, "--dtype must be one of"),
        ({"device": "tpu"}, "--device must be one of"),
        ({"steps": -1}, "--steps must be from 0"),
        ({"seed": -1}, "--seed must be from 0 to 4294967295, not -1"),
        ({"seed": 2**70}, "--seed must be from 0 to"),
        ({"steps": 10**9}, "--steps must be from 0"),
        ({"config": "nothing.yaml"}, "there is no config file"),
        ({"data": "nothing.parquet"}, "nothing.parquet"),
        ({"recipe": ""}, "the recipe name is empty"),
        ({"recipe": "no_such_recipe"}, "recipe no_such_recipe is not in the catalogue"),
        ({"recipe": RECIPE[:-1]}, f"has no recipe {RECIPE[:-1]}; did you mean {RECIPE}"),
        ({"model": "/nowhere"}, "--model completes the shape of a config"),
        ({"vpp": 2}, "--vpp 2 with --pp 1 is no virtual pipeline"),
        ({"pp": 2, "cp": 1, "vpp": 1}, "--vpp 1 with --pp 2 is no virtual pipeline"),
        ({"pp": 2, "cp": 1, "vpp": -5}, "--vpp -5 with --pp 2 is no virtual pipeline"),
        ({"sp": True}, "--sp needs --tp"),
        ({"comm_types": ("a2a+p2p",)}, "--cp 4"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_a_worker_starts(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        prove_parity(ParityOptions(**options))


PACKED = """\
model:
  context_parallel_size: {cp}
  calculate_per_token_loss: {per_token}
dataset:
  enable_offline_packing: true
  offline_packing_specs:
    packed_sequence_size: 4096
    pad_seq_to_mult: {multiple}
"""


def packed(folder: Path, *, cp: int, multiple: int, per_token: bool = True) -> Path:
    path = folder / "packed.yaml"
    path.write_text(PACKED.format(cp=cp, multiple=multiple, per_token=str(per_token).lower()), "utf-8")
    return path


@pytest.mark.parametrize(
    ("cp", "multiple", "small"),
    [(2, 1, 1), (2, 4, 4), (2, 64, 4), (2, 6, 2), (8, 8, 2), (8, 16, 4), (8, 24, 2), (8, 1, 1), (3, 6, 4), (3, 4, 1)],
)
def test_a_multiple_fits_the_small_cp_exactly_when_it_fits_the_configs(
    tmp_path: Path, cp: int, multiple: int, small: int
) -> None:
    request = requested(ParityOptions(config=packed(tmp_path, cp=cp, multiple=multiple)))
    assert request["layouts"][0]["cp"] == 2
    assert request["pad_seq_to_mult"] == small
    assert (small % 4 == 0) == (multiple % (2 * cp) == 0)


def test_without_cp_every_multiple_fits(tmp_path: Path) -> None:
    assert requested(ParityOptions(config=packed(tmp_path, cp=1, multiple=3)))["pad_seq_to_mult"] == 1


@pytest.mark.parametrize(
    ("cp", "per_token", "loss"),
    [(2, False, "per-microbatch"), (2, True, "per-token"), (1, False, "per-token")],
)
def test_the_loss_is_averaged_as_the_config_does_it_under_cp(
    tmp_path: Path, cp: int, per_token: bool, loss: str
) -> None:
    config = packed(tmp_path, cp=cp, multiple=4, per_token=per_token)
    assert requested(ParityOptions(config=config))["loss"] == loss


def test_without_a_worker_the_way_to_make_one_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SKILL_RUN_WORKERS", str(tmp_path))
    with pytest.raises(MissingError, match="skill-run worker setup"):
        prove_parity()


def proved(worker: Worker, folder: Path, patch: pytest.MonkeyPatch, **options: Any) -> ParityReport:
    (folder / worker.name).mkdir(exist_ok=True)
    (folder / worker.name / RECORD).write_text(json.dumps(worker.to_dict()), "utf-8")
    patch.setenv("SKILL_RUN_WORKERS", str(folder))
    return prove_parity(ParityOptions(worker=worker.name, **options))


def test_a_config_with_its_own_packed_data_is_proved(
    core_worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "conf.yaml"
    plain = CONFIG.replace("tensor_model_parallel_size: 2", "tensor_model_parallel_size: 1").replace("true", "false")
    config.write_text(plain, "utf-8")
    lengths = tmp_path / "lengths.json"
    lengths.write_text(json.dumps([40, 17, 5, 1, 8]), "utf-8")
    report = proved(core_worker, tmp_path, monkeypatch, config=config, data=lengths, controls=(), steps=1)
    assert report.passed, report.to_dict()
    assert len(report.layouts) == 3
    assert all(layout["gradient_error"] <= 1e-12 for layout in report.layouts)
    told = json.loads(json.dumps(report.to_dict()))
    assert told["passed"] is True
    form = json.loads((files("skill_run.report") / "parity.schema.json").read_text("utf-8"))
    Draft202012Validator(form).validate(told)


def test_a_config_with_a_silent_fault_is_not_proved(
    core_worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = packed(tmp_path, cp=8, multiple=8, per_token=False)
    quick: dict[str, Any] = {"config": config, "controls": (), "steps": 0, "comm_types": ("all_gather",)}
    report = proved(core_worker, tmp_path, monkeypatch, **quick)
    assert not report.passed
    assert report.layouts[0]["diagnosis"]["name"] == "pad-multiple-1"
    assert any("offline-pad-multiple-covers-cp" in note for note in report.result["notes"])
    packed(tmp_path, cp=8, multiple=16, per_token=False)
    report = proved(core_worker, tmp_path, monkeypatch, **quick)
    assert not report.passed
    assert report.layouts[0]["diagnosis"]["name"] == "loss-scaling"
    assert report.layouts[0]["loss_error"] <= 1e-12


@pytest.mark.parametrize("masked", [{"finite": True, "passed": False}, {"finite": False, "passed": True}])
def test_masked_ranks_that_compute_something_else_are_no_proof(masked: dict[str, bool]) -> None:
    result = {"layouts": [{"passed": True}], "controls": [], "all_masked": {"finite": True, "passed": True}}
    shape, packs = Shape({}), Packs([], 0, 1)
    assert ParityReport("one", result, shape, packs).passed
    assert not ParityReport("one", {**result, "all_masked": masked}, shape, packs).passed
