"""Our verdict on validate() against the real one: configs drawn afresh in every run, and the config at hand."""

from __future__ import annotations

import secrets
from typing import Any

import pytest
import random_configs

from skill_run.rules.validate import bundle_rules, judge
from skill_run.verify.recorded import RecordedCase, read_cases
from skill_run.worker.environments import Worker
from skill_run.worker.session import run_task

DRAWN = 200
AGREEMENT = 0.995
HOSTILE = {
    "torch.os.system": {"_target_": "torch.os.system", "_args_": ["true"]},
    "builtins.eval": {"_target_": "builtins.eval", "_args_": ["1"]},
    "torch.load": {"_target_": "torch.load", "f": "/etc/hostname"},
    "os": {"_call_": False, "_target_": "megatron.bridge.training.config.os.system"},
    "partial": {"_partial_": True, "_target_": "torch.hub.load"},
    "function": {"_target_": "megatron.bridge.training.config.runtime_config_update", "cfg": 1},
}


@pytest.fixture(scope="module")
def seed() -> int:
    return secrets.randbelow(2**32)


@pytest.fixture(scope="module")
def drawn(seed: int) -> list[random_configs.Drawn]:
    return random_configs.draw(DRAWN, seed)


@pytest.fixture(scope="module")
def accepted() -> dict[str, Any]:
    return next(case.config for case in _recorded() if not case.raises)


@pytest.fixture(scope="module")
def answers(
    bridge_worker: Worker, drawn: list[random_configs.Drawn], accepted: dict[str, Any]
) -> dict[str, list[dict[str, Any]]]:
    """What the worker said in one run: to drawn configs, hostile ones, one that needs too much, and one after it."""
    groups = {
        "drawn": [config.case() for config in drawn],
        "recorded": [{"config": case.config, "world_size": case.world_size} for case in _recorded()],
        "hostile": [{"config": _with_model(accepted, "activation_func", value)} for value in HOSTILE.values()],
        "huge": [{"config": _with_model(_with_model(accepted, "num_layers", 10**12), "moe_layer_freq", 1)}],
        "after": [{"config": accepted, "world_size": 8}],
        "partial": [{"config": {"model": {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4}}}],
    }
    told = run_task(bridge_worker, "oracle", {"cases": [case for group in groups.values() for case in group]})["cases"]
    return {name: [told.pop(0) for _ in group] for name, group in groups.items()}


def _recorded() -> list[RecordedCase]:
    cases = read_cases(random_configs.DATA.read_bytes())
    return [case for case in cases if case.version == random_configs.RELEASE]


def _with_model(config: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    return {**config, "model": {**config["model"], name: value}}


def test_our_verdict_agrees_with_the_real_validate_on_fresh_random_configs(
    answers: dict[str, list[dict[str, Any]]], drawn: list[random_configs.Drawn], seed: int
) -> None:
    misses = []
    for config, answer in zip(drawn, answers["drawn"], strict=True):
        report = judge(
            config.config,
            rules=bundle_rules(),
            bridge=random_configs.RELEASE,
            world_size=config.world_size,
            env=config.env,
            te=random_configs.TE,
            gpu=random_configs.GPU,
        )
        if report.upstream_validate != answer["outcome"]:
            said = answer.get("message", "")[:200]
            misses.append((config.base, config.changed, report.upstream_validate, answer["outcome"], said))
    assert 1 - len(misses) / DRAWN >= AGREEMENT, f"seed {seed}: {misses}"


def test_what_was_recorded_from_the_real_code_is_said_again(answers: dict[str, list[dict[str, Any]]]) -> None:
    changed = {
        case.id: answer
        for case, answer in zip(_recorded(), answers["recorded"], strict=True)
        if (answer["outcome"] == "raises") != bool(case.raises) or case.raises not in (None, answer.get("error"))
    }
    assert changed == {}


def test_both_verdicts_occur_among_random_configs(answers: dict[str, list[dict[str, Any]]]) -> None:
    outcomes = [answer["outcome"] for answer in answers["drawn"]]
    assert outcomes.count("raises") > DRAWN // 10
    assert outcomes.count("passes") > DRAWN // 10


def test_a_refusal_names_the_line_of_megatron_that_raised(answers: dict[str, list[dict[str, Any]]]) -> None:
    raised = [answer for answer in answers["drawn"] if answer["outcome"] == "raises"]
    assert all(answer["where"].rpartition(":")[2].isdigit() for answer in raised)


@pytest.mark.parametrize("number", range(len(HOSTILE)), ids=list(HOSTILE))
def test_a_target_that_is_no_config_class_is_refused_by_name(
    answers: dict[str, list[dict[str, Any]]], number: int
) -> None:
    answer = answers["hostile"][number]
    assert answer["outcome"] == "cannot-build"
    assert answer["message"].startswith("model.activation_func ")


def test_a_config_that_asks_for_too_much_does_not_stop_the_others(answers: dict[str, list[dict[str, Any]]]) -> None:
    assert answers["huge"][0]["outcome"] in ("raises", "passes", "cannot-build")
    assert answers["after"][0]["outcome"] in ("raises", "passes")
    assert answers["after"][0]["phase"] == "validate"


def test_a_partial_config_is_told_what_its_classes_need(answers: dict[str, list[dict[str, Any]]]) -> None:
    answer = answers["partial"][0]
    assert answer["outcome"] == "cannot-build"
    assert answer["message"].startswith("dataset does not say ")
