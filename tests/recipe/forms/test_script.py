"""Complete scripts of a draft."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from skill_run.bridge.recipes import catalogue
from skill_run.recipe.draft import Draft
from skill_run.recipe.forms.script import render_script


def draft(bridge: str = "0.6.2", recipe: str = "llama32_1b_sft_config", **given: Any) -> Draft:
    held: dict[str, Any] = {"workflow": "sft", "title": "Packed SFT", "task": "sft", "settings": {}, "world_size": 8}
    return Draft(bridge=bridge, recipe=catalogue(bridge)[recipe], **{**held, **given})


def test_a_script_starts_finetune_with_the_config_that_build_returns() -> None:
    text = render_script(draft())
    assert "    finetune(config=build(), forward_step_func=forward_step)\n" in text
    assert "from megatron.bridge.training.gpt_step import forward_step\n" in text
    assert text.endswith('if __name__ == "__main__":\n    main()\n')


def test_a_pretraining_draft_starts_pretrain() -> None:
    text = render_script(draft(recipe="llama31_405b_pretrain_1024gpu_h100_fp8cs_config", task="pretrain"))
    assert "from megatron.bridge.training.pretrain import pretrain\n" in text
    assert "    pretrain(config=build(), forward_step_func=forward_step)\n" in text


@pytest.mark.parametrize(
    ("gpu", "gpus", "line"),
    [
        ("h100", 8, "torchrun --standalone --nproc_per_node=8 train.py"),
        ("h100", 16, "torchrun --nnodes=2 --nproc_per_node=8 --node_rank=$NODE_RANK \\"),
        ("h100", 12, "torchrun --nnodes=2 --nproc_per_node=6 --node_rank=$NODE_RANK \\"),
        ("gb200", 8, "torchrun --nnodes=2 --nproc_per_node=4 --node_rank=$NODE_RANK \\"),
    ],
)
def test_the_docstring_of_a_script_says_how_it_is_started(gpu: str, gpus: int, line: str) -> None:
    told = ast.get_docstring(ast.parse(render_script(draft(gpu=gpu, world_size=gpus))))
    assert told is not None
    assert line in told


def test_text_of_the_user_stays_text_wherever_it_stands() -> None:
    evil = '"""\nimport os\nos.system("x")\n\\'
    made = draft(
        title=evil,
        settings={"checkpoint.save": evil, "logger.wandb_project": "it's"},
        comments={"checkpoint.save": evil},
        env={"A": evil},
    )
    tree = ast.parse(render_script(made))
    assert not any(isinstance(node, ast.Import) for node in ast.walk(tree))
    assert {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)} >= {evil, "it's"}


@pytest.mark.parametrize(
    ("bridge", "recipe", "settings", "module"),
    [
        ("0.6.2", "qwen3_vl_8b_sft_config", {}, "megatron.bridge.models.qwen_vl.qwen3_vl_step"),
        ("0.3.1", "qwen3_vl_8b_finetune_config", {}, "megatron.bridge.training.vlm_step"),
        ("0.6.2", "qwen25_vl_7b_sft_config", {}, "megatron.bridge.training.vlm_step"),
        ("0.6.2", "gemma3_vl_4b_sft_config", {}, "megatron.bridge.training.vlm_step"),
        (
            *("0.6.2", "gemma3_vl_4b_sft_config"),
            {"dataset.type": "GPTSFTDatasetConfig", "dataset.seq_length": 4096},
            "megatron.bridge.training.gpt_step",
        ),
        ("0.5.1", "qwen2_audio_7b_finetune_config", {}, "megatron.bridge.training.audio_lm_step"),
        (
            *("0.6.2", "deepseek_v4_flash_sft_config"),
            {"model.context_parallel_size": 2},
            "megatron.bridge.models.deepseek.deepseek_v4_step",
        ),
    ],
)
def test_the_forward_step_fits_the_model_its_data_and_the_release(
    bridge: str, recipe: str, settings: dict[str, Any], module: str
) -> None:
    assert f"from {module} import forward_step\n" in render_script(draft(bridge, recipe, settings=settings))


def test_the_step_of_a_video_model_is_made_for_the_mode() -> None:
    text = render_script(draft(recipe="wan_1_3b_text2video_pretrain_4gpu_h100_bf16_config", task="pretrain"))
    assert '    pretrain(config=build(), forward_step_func=WanForwardStep(mode="pretrain"))\n' in text


def test_environment_variables_are_comments_with_their_reason() -> None:
    text = render_script(draft(env={"NVTE_FLASH_ATTN": "1 2"}, comments={"env.NVTE_FLASH_ATTN": "because"}))
    assert "# because\n#   export NVTE_FLASH_ATTN='1 2'\n" in text
