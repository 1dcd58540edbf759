from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skill_run.errors import InputError
from skill_run.rehearse.request import Request, make_request
from skill_run.rules.validate import read_sources

RECIPE = "qwen3_8b_sft_8gpu_h100_bf16_32k_config"


def request(source: Any = None, *overrides: str, recipe: str | None = None, tokenizer: str | None = None) -> Request:
    original = source if isinstance(source, dict) else None
    return make_request(
        read_sources(source, recipe=recipe, overrides=overrides),
        release="0.6.2",
        recipe=recipe,
        model=None,
        tokenizer=tokenizer,
        original=original,
    )


def test_a_recipe_is_called_by_the_name_of_its_function() -> None:
    assert request(recipe="llama32_1b_sft_config").base == {
        "recipe": "llama32_1b_sft_1gpu_h100_bf16_config",
        "module": "megatron.bridge.recipes.llama.h100.llama3",
    }


def test_overrides_stay_the_tokens_that_the_user_wrote() -> None:
    found = request(None, "++train.train_iters=3", "model.seq_length=512", recipe=RECIPE)
    assert found.steps == [{"kind": "overrides", "values": ["++train.train_iters=3", "model.seq_length=512"]}]


def test_a_partial_file_is_laid_over_the_recipe_before_the_overrides() -> None:
    found = request({"recipe": RECIPE, "world_size": 8, "train": {"train_iters": 7}}, "train.train_iters=3")
    assert [step["kind"] for step in found.steps] == ["yaml", "overrides"]
    assert found.steps[0]["values"] == {"train": {"train_iters": 7}}


def test_a_container_is_handed_on_as_it_stands() -> None:
    container = {"_target_": "megatron.bridge.training.config.ConfigContainer", "train": {"train_iters": 7}}
    assert request(container).base == {"container": container}


def test_what_a_script_sets_is_told_apart_from_a_file(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys\n"
        f"from megatron.bridge.recipes.qwen import {RECIPE}\n"
        f"cfg = {RECIPE}()\n"
        "cfg.train.train_iters = 5\n"
        "cfg.model.seq_length = int(sys.argv[1])\n",
        encoding="utf-8",
    )
    found = request(script)
    assert found.steps == [{"kind": "code", "values": {"train": {"train_iters": 5}}}]
    assert any("model.seq_length is left as the base has it" in note for note in found.notes)


def test_a_recipe_that_the_release_lacks_is_told_with_the_nearest() -> None:
    with pytest.raises(InputError, match=f"no recipe qwen3_8b_sft_8gpu_h100_bf16_32k_confg; the nearest is {RECIPE}"):
        request(recipe="qwen3_8b_sft_8gpu_h100_bf16_32k_confg")


def test_a_hub_id_without_files_gives_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    found = request(recipe=RECIPE)
    assert found.tokenizer is None
    assert [note for note in found.notes if "tokenizer Qwen/Qwen3-8B is not on this machine" in note]


def test_a_local_tokenizer_in_the_config_is_used(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    found = request(None, f"tokenizer.tokenizer_model={tmp_path}", recipe=RECIPE)
    assert found.tokenizer == str(tmp_path)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no tokenizer"):
        request(recipe=RECIPE, tokenizer=str(tmp_path))
