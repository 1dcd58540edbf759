"""Rehearsals on the real Megatron-Bridge: each runs once, and many tests look at what it told."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from skill_run import rehearse_config
from skill_run.errors import InputError
from skill_run.rehearse.report import RehearsalReport, render_rehearsal
from skill_run.worker.environments import RECORD, Worker

QWEN = "qwen3_8b_sft_8gpu_h100_bf16_32k_config"
LLAMA = "llama32_1b_peft_1gpu_h100_bf16_config"
EXPERTS = "qwen3_30b_a3b_sft_8gpu_h100_bf16_config"
MULTIPLE = "dataset.offline_packing_specs.pad_seq_to_mult"
CONFIG = "megatron.bridge.training.config."
CONTAINER = {
    "_target_": f"{CONFIG}ConfigContainer",
    "model": {
        "_target_": "megatron.bridge.models.gpt_provider.GPTModelProvider",
        "num_layers": 4,
        "hidden_size": 512,
        "ffn_hidden_size": 2048,
        "num_attention_heads": 16,
        "num_query_groups": 8,
        "seq_length": 4096,
        "vocab_size": 32000,
        "activation_func": {"_target_": "torch.nn.functional.silu", "_call_": False},
        "gated_linear_unit": True,
        "normalization": "RMSNorm",
        "add_bias_linear": False,
        "position_embedding_type": "rope",
        "context_parallel_size": 2,
        "cp_comm_type": "a2a",
        "calculate_per_token_loss": True,
    },
    "train": {
        "_target_": f"{CONFIG}TrainingConfig",
        "train_iters": 100,
        "global_batch_size": 32,
        "micro_batch_size": 2,
    },
    "optimizer": {"_target_": f"{CONFIG}OptimizerConfig", "optimizer": "adam", "lr": 1e-4, "min_lr": 0.0},
    "scheduler": {"_target_": f"{CONFIG}SchedulerConfig", "start_weight_decay": 0.1, "end_weight_decay": 0.1},
    "ddp": {"_target_": f"{CONFIG}DistributedDataParallelConfig", "average_in_collective": False},
    "dataset": {
        "_target_": "megatron.bridge.data.builders.direct_hf_sft.DirectHFSFTDatasetConfig",
        "seq_length": 4096,
        "source": {"_target_": "megatron.bridge.data.sources.hf.HFDatasetSourceConfig", "dataset_name": "tulu3"},
        "preprocessing": {"_target_": "megatron.bridge.data.sft_processing.ChatSFTPreprocessingConfig"},
        "enable_in_batch_packing": True,
    },
    "logger": {"_target_": f"{CONFIG}LoggerConfig"},
    "tokenizer": {
        "_target_": "megatron.bridge.training.tokenizers.config.TokenizerConfig",
        "tokenizer_type": "HuggingFaceTokenizer",
        "tokenizer_model": "acme/tiny",
    },
    "checkpoint": {"_target_": f"{CONFIG}CheckpointConfig"},
}


@pytest.fixture(scope="session", autouse=True)
def only_worker(bridge_worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Name of the worker with Megatron-Bridge, which is the only one that can be found."""
    folder = tmp_path_factory.mktemp("workers") / bridge_worker.name
    folder.mkdir()
    (folder / RECORD).write_text(json.dumps(bridge_worker.to_dict()), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKILL_RUN_WORKERS", str(folder.parent))
        patch.delenv("SKILL_RUN_WORKER", raising=False)
        yield bridge_worker.name


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's data: uneven samples, and one longer than a pack of the rehearsal."""
    folder = tmp_path_factory.mktemp("data")
    draw = random.Random(0)
    lengths = [draw.randint(1, 150) for _ in range(80)] + [6000]
    with open(folder / "training.jsonl", "w", encoding="utf-8") as stream:
        for length in lengths:
            answer = " ".join(draw.choice(("red", "green", "blue", "stone")) for _ in range(length))
            stream.write(json.dumps({"input": f"list {length} colours", "output": answer}) + "\n")
    return folder


@pytest.fixture(scope="session")
def packed(data: Path) -> RehearsalReport:
    """A Qwen3 with context, tensor and sequence parallelism, trained on the user's packed data."""
    return rehearse_config(None, recipe=QWEN, data=data, iters=2, pack=512)


@pytest.fixture(scope="session")
def adapted() -> RehearsalReport:
    """A Llama with LoRA on made-up data."""
    return rehearse_config(
        None, recipe=LLAMA, overrides=["checkpoint.pretrained_checkpoint=/cluster/base"], iters=2, pack=256
    )


@pytest.fixture(scope="session")
def in_batch() -> RehearsalReport:
    """A whole ConfigContainer with chat data, packed in the batch, under context parallelism."""
    return rehearse_config(CONTAINER, overrides=["train.micro_batch_size=4"], world_size=8, iters=2)


def stage(report: RehearsalReport, name: str) -> Mapping[str, Any]:
    return next(stage for stage in report.stages if stage["stage"] == name)


def names(report: RehearsalReport) -> list[str]:
    return [stage["stage"] for stage in report.stages if stage["status"] == "ok"]


def test_a_recipe_goes_through_every_stage(packed: RehearsalReport) -> None:
    assert names(packed) == ["import", "build", "validate", "data", "packing", "train", "save", "resume"]
    assert packed.failed is None


def test_context_tensor_and_sequence_parallelism_are_kept(packed: RehearsalReport) -> None:
    assert packed.result["layout"] == {"ranks": 4, "tp": 2, "pp": 1, "cp": 2, "dp": 1, "ep": 1}
    assert "model.sequence_parallel" not in {change["field"] for change in packed.result["changes"]}


def test_the_loss_falls_and_every_step_is_told(packed: RehearsalReport) -> None:
    steps = stage(packed, "train")["steps"]
    assert [step["step"] for step in steps] == [1, 2]
    assert steps[1]["loss"] < steps[0]["loss"]
    assert all(step["grad_norm"] > 0 for step in steps)


def test_a_resumed_run_repeats_the_run_that_went_on_to_the_last_digit(packed: RehearsalReport) -> None:
    resumed = stage(packed, "resume")
    assert [step["step"] for step in resumed["steps"]] == [3, 4]
    assert resumed["loss_error"] < 1e-6


def test_the_users_data_are_measured_and_packed_at_both_sizes(packed: RehearsalReport) -> None:
    packing = stage(packed, "packing")
    assert packing["lengths"]["samples"] == packing["here"]["sequences"] == 81
    assert packing["lengths"]["longer_than"]["seq_length here"] == [512, 1]
    assert packing["lengths"]["longer_than"]["seq_length of the config"] == [32768, 0]
    assert packing["at_full_size"]["pack_size"] == 32768
    assert 0.5 < packing["here"]["efficiency"] <= 1


def test_too_few_packs_at_full_size_are_told_though_the_rehearsal_goes_on(packed: RehearsalReport) -> None:
    assert [problem for problem in packed.result["problems"] if "fewer than global_batch_size 8" in problem]
    assert not packed.passed


def test_a_captured_batch_is_inspected_with_the_context_parallel_size(packed: RehearsalReport) -> None:
    assert packed.batch is not None
    assert packed.batch.path == "offline_packed"
    assert packed.batch.cp is not None
    assert not packed.batch.at_least("corruption")


def test_a_hub_tokenizer_without_files_is_told(packed: RehearsalReport) -> None:
    assert [note for note in packed.notes if "--tokenizer DIR" in note]


def test_adapters_train_on_a_saved_base_and_resume(adapted: RehearsalReport) -> None:
    assert names(adapted) == ["import", "build", "validate", "data", "packing", "base", "train", "save", "resume"]
    assert stage(adapted, "base")["peft"] == "LoRA"
    assert stage(adapted, "resume")["loss_error"] < 1e-6
    assert adapted.passed


def test_a_report_says_what_a_cpu_cannot_show(adapted: RehearsalReport) -> None:
    text = render_rehearsal(adapted, verbose=True)
    assert "Kernels: attention, norms and linear layers of Transformer Engine" in text
    assert "model.num_layers: 16 -> 2" in text
    assert text.splitlines()[-1].endswith("every stage went well")


def test_packing_in_the_batch_runs_from_a_whole_container(in_batch: RehearsalReport) -> None:
    assert in_batch.failed is None
    assert stage(in_batch, "build")["dataset"] == "DirectHFSFTDatasetConfig"
    assert in_batch.batch is not None
    assert in_batch.batch.path == "in_batch_packed"
    assert stage(in_batch, "resume")["loss_error"] < 1e-6


def test_experts_and_pipeline_stages_are_rehearsed() -> None:
    report = rehearse_config(None, recipe=EXPERTS, iters=1, pack=256)
    assert report.failed is None
    assert report.result["layout"] == {"ranks": 4, "tp": 2, "pp": 2, "cp": 1, "dp": 1, "ep": 2}


@pytest.mark.parametrize(
    ("override", "failed", "words"),
    [
        (f"{MULTIPLE}=1", "train", "no multiple of 2*CP = 4"),
        ("dataset.seq_length=16384", "validate", "Please ensure sequence length configuration"),
        ("train.micro_batch_size=2", "validate", "Micro batch size should be 1 when training with packed sequence"),
        ("dataset.packed_sequence_specs.pad_seq_to_mult=8", "build", "Could not override"),
        ("model.context_parallel_size=3", "validate", "not divisible by total_model_size"),
        ("optimizer.min_lr=1.0", "setup", "AssertionError: assert self.max_lr >= self.min_lr"),
    ],
)
def test_each_fault_is_caught_at_its_own_stage_in_upstreams_words(override: str, failed: str, words: str) -> None:
    report = rehearse_config(None, recipe=QWEN, overrides=[override], iters=1, pack=256, world_size=8)
    assert report.failed is not None
    assert report.failed["stage"] == failed
    assert words in report.failed["message"]
    assert "Traceback" not in render_rehearsal(report)
    if failed == "train":
        assert report.batch is not None
        assert [finding.rule for finding in report.batch.at_least("corruption")] == ["batch-boundaries-cover-cp"]
    else:
        assert report.failed["place"].startswith(("megatron/bridge/training/", "megatron/core/"))


def test_a_vocabulary_that_is_smaller_than_the_tokenizers_is_caught(tmp_path: Path) -> None:
    words = {"<unk>": 0, **{f"w{number}": number for number in range(1, 300)}}
    model = {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"}
    empty = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    tokenizer = {"version": "1.0", "added_tokens": [], "model": model, **dict.fromkeys(empty)}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}', "utf-8")
    report = rehearse_config(None, recipe=QWEN, overrides=["model.vocab_size=200"], tokenizer=tmp_path, iters=1)
    assert report.failed is not None
    assert report.failed["stage"] == "setup"
    assert "Model vocab_size (200) cannot be smaller than tokenizer's vocab_size (300)" in report.failed["message"]


def test_a_blank_line_is_named_since_upstream_reads_it_as_a_sample(tmp_path: Path) -> None:
    row = json.dumps({"input": "a", "output": "b"}) + "\n"
    (tmp_path / "training.jsonl").write_text(row * 3 + "\n" + row, "utf-8")
    report = rehearse_config(None, recipe=QWEN, data=tmp_path, iters=1)
    assert report.failed is not None
    assert report.failed["stage"] == "data"
    assert report.failed["message"].startswith("line 4 of training.jsonl is blank, and Megatron-Bridge reads every")


def test_a_name_of_another_release_in_a_file_is_caught_though_upstream_drops_it() -> None:
    partial = {"recipe": QWEN, "dataset": {"packed_sequence_specs": {"pad_seq_to_mult": 8}}}
    report = rehearse_config(partial, iters=1)
    assert report.failed is not None
    assert report.failed["stage"] == "build"
    assert "drops packed_sequence_specs of GPTSFTDatasetConfig" in report.failed["message"]
    assert "renamed-field" in {finding.rule for finding in report.rules.at_least("error")}


def test_a_file_cannot_make_a_worker_call_a_function() -> None:
    hostile = {
        "_target_": "megatron.bridge.training.config.ConfigContainer",
        "train": {"_target_": "megatron.bridge.utils.import_utils.safe_import", "module": "os"},
    }
    with pytest.raises(InputError, match=r"is no class|only Megatron's own config classes"):
        rehearse_config(hostile, iters=1)


def test_a_rank_that_is_killed_in_the_middle_is_named_and_no_process_is_left() -> None:
    killed: list[int] = []
    workers: list[int] = []

    def kill_a_rank(event: Mapping[str, Any]) -> None:
        if event["event"] == "step" and not killed:
            # Other tests of this process may have children of their own, such as a Slurm.
            workers.extend(pid for pid in children(os.getpid()) if is_worker(pid))
            ranks = sorted(pid for worker in workers for pid in children(worker))
            killed.append(ranks[-1])
            os.kill(ranks[-1], signal.SIGKILL)

    # Enough steps that the first one is told while the ranks still train.
    report = rehearse_config(None, recipe=QWEN, iters=200, pack=256, on_event=kill_a_rank)
    assert report.failed is not None
    assert report.failed["stage"] == "train"
    assert "was killed by SIGKILL" in report.failed["message"]
    assert not any(Path(f"/proc/{pid}").exists() for pid in (*killed, *workers))


def is_worker(pid: int) -> bool:
    return b"boot.py" in Path(f"/proc/{pid}/cmdline").read_bytes()


def children(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(child) for child in path.read_text().split()]
    return found
