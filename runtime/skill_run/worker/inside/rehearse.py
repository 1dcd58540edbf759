"""Task `rehearse`: the user's config and data through the real Megatron-Bridge loop, stage by stage, made small."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from skill_run.rehearse.change import Change
from skill_run.rehearse.scale import Wishes, plan_changes
from skill_run.worker.inside.rehearse_build import build_config, fill_hub_cache
from skill_run.worker.inside.rehearse_data import (
    columns_of,
    make_tokenizer,
    scratch,
    training_file,
    write_training_data,
)
from skill_run.worker.inside.rehearse_fields import read_values, write_change
from skill_run.worker.inside.rehearse_model import refuse_unsupported, use_cpu_layers
from skill_run.worker.inside.rehearse_pack import measure_lengths, pack_data, readable_batch
from skill_run.worker.inside.rehearse_stages import StageFailure, refuse_full_disk
from skill_run.worker.inside.rehearse_train import Outcome, compared, run_training, trained
from skill_run.worker.inside.rehearse_validate import check_vocabulary, judge_at_full_size, least_ranks
from skill_run.worker.inside.serve import Channel

STAGES: Final = ("import", "build", "validate", "data", "packing", "train", "save", "resume")


def run(request: Mapping[str, Any], channel: Channel) -> dict[str, Any]:
    """Return {"stages": [...], "changes": [...], "layout", "data", "batch", "notes", ...}; a failed stage ends the run.

    request: what skill_run.rehearse.run sends. Every failure of upstream's code is the result of a stage, so that what
    went well before is told too. Raises RefusedError for data that cannot be read.
    """
    rehearsal = Rehearsal(request, channel)
    try:
        rehearsal.run()
    except StageFailure as failure:
        refuse_full_disk(os.environ["SKILL_RUN_SCRATCH"])
        rehearsal.fail(failure)
    return rehearsal.result


class Rehearsal:
    """One run of the task; `result` grows with the stages."""

    def __init__(self, request: Mapping[str, Any], channel: Channel) -> None:
        self.request = request
        self.channel = channel
        self.iters = int(request["iters"])
        self.more = int(request["more_iters"])
        self.result: dict[str, Any] = {
            "scratch": str(scratch(".")),
            "stages": [],
            "changes": [],
            "layout": None,
            "problems": [],
            "notes": [],
            "own_layer_spec": False,
        }
        self.config: Any = None
        self.tokenizer: Any = None
        self.began = time.monotonic()

    def run(self) -> None:
        """Go through all stages; raises StageFailure for the first that fails."""
        self._stage("import", import_megatron)
        self._stage("build", self.build)
        self._stage("validate", self.validate)
        self._stage("data", self.prepare_data)
        self.scale()
        self._stage("packing", self.pack)
        base = self.make_base()
        self.train(base)

    def _stage(self, name: str, work: Callable[[], Mapping[str, Any] | None]) -> None:
        self.channel.progress(_SAYING[name], STAGES.index(name), len(STAGES))
        self.began = time.monotonic()
        self.done(name, work())

    def done(self, name: str, found: Mapping[str, Any] | None, seconds: float | None = None) -> None:
        """Add a stage that went well, or `found` None for one that does not apply."""
        took = time.monotonic() - self.began if seconds is None else seconds
        state = {"status": "ok", **found} if found is not None else {"status": "skipped"}
        self.result["stages"].append({"stage": name, "seconds": round(took, 2), **state})

    def fail(self, failure: StageFailure) -> None:
        """Add the stage that failed."""
        told = failure.to_dict()
        told["seconds"] = round(time.monotonic() - self.began, 2)
        self.result["stages"].append({**told, "status": "failed"})

    def build(self) -> dict[str, Any]:
        """Make the user's ConfigContainer."""
        base = self.request["base"]
        fill_hub_cache(self.request["models"], [base["module"]] if "module" in base else [])
        self.config, text = build_config(self.request)
        model, dataset = type(self.config.model).__name__, type(self.config.dataset).__name__
        return {"from": text, "model": model, "dataset": dataset}

    def validate(self) -> dict[str, Any]:
        """Let the real validate() judge the config at the user's own size, apart from what needs a GPU."""
        values = read_values(self.config)
        least, asked = least_ranks(values), self.request["world_size"]
        usual = self.request.get("gpus") or least
        self.world_size = asked or (least if usual % least else usual)
        judge_at_full_size(self.config, values, self.world_size)
        source = "given" if asked else "recipe" if self.world_size == self.request.get("gpus") else "least"
        return {"world_size": self.world_size, "world_size_from": source}

    def prepare_data(self) -> dict[str, Any] | None:
        """Lay data and tokenizer down as local files, and point the config at them."""
        refuse_unsupported(self.config)
        dataset = self.config.dataset
        if not hasattr(dataset, "preprocessing"):
            # A pretraining set: Megatron's own mock data take its place.
            self._change("dataset.blend", None, "offline", "mock data")
            self._change("dataset.blend_per_split", None, "offline", "mock data")
            self._set_tokenizer(make_tokenizer(scratch("tokenizer"), None))
            self.result["data"] = {"made_up": True, "samples": None, "columns": []}
            return {"made_up": True}
        columns = columns_of(dataset)
        folder = self.request["data"] or self._own_data()
        source = training_file(folder) if folder is not None else None
        held = write_training_data(source, columns, scratch("data"))
        # Made-up words need no more than the stand-in, whose small vocabulary is quick.
        stand_in = self.request["tokenizer"] is None or (source is None and not self.request["tokenizer_asked"])
        size = (
            make_tokenizer(scratch("tokenizer"), scratch("data") / "training.jsonl" if source else None)
            if stand_in
            else 0
        )
        self._set_tokenizer(size)
        self._set_source()
        self.result["data"] = {**held, "stand_in_tokenizer": stand_in}
        return dict(held)

    def _own_data(self) -> str | None:
        """Return the config's own data folder when it is on this machine."""
        root = getattr(self.config.dataset, "dataset_root", None)
        return str(root) if root is not None and (Path(root) / "training.jsonl").is_file() else None

    def _set_tokenizer(self, size: int) -> None:
        """Use the user's tokenizer files, or the stand-in with `size` tokens when that is not 0."""
        from megatron.bridge.training.tokenizers.tokenizer import build_tokenizer

        why = "a stand-in" if size else "files at hand"
        self._change("tokenizer.tokenizer_type", "HuggingFaceTokenizer", "offline", why)
        folder = scratch("tokenizer") if size else self.request["tokenizer"]
        self._change("tokenizer.tokenizer_model", str(folder), "offline", why)
        for name, value in (("hf_tokenizer_kwargs", {}), ("trust_remote_code", False), ("chat_template_path", None)):
            self._change(f"tokenizer.{name}", value, "offline", why)
        try:
            self.tokenizer = build_tokenizer(copy.deepcopy(self.config.tokenizer))
        except Exception as error:
            raise StageFailure.from_error("data", error) from error
        self.vocab_size = size or int(self.tokenizer.vocab_size)
        if not size:
            check_vocabulary(self.config, self.vocab_size)

    def _set_source(self) -> None:
        from megatron.bridge.data.builders.gpt_sft import GPTSFTDatasetConfig, resolve_gpt_sft_preprocessing

        dataset, folder, why = self.config.dataset, str(scratch("data")), "local JSONL"
        if isinstance(dataset, GPTSFTDatasetConfig):
            if dataset.hf_dataset is not None and dataset.preprocessing is None:
                # Without a hub source the library's default would be another one.
                dataset.preprocessing = resolve_gpt_sft_preprocessing(dataset)
            for name in ("hf_dataset", "hf_validation_dataset", "hf_test_dataset", "hf_output_root"):
                self._change(f"dataset.{name}", None, "offline", why)
            self._change("dataset.hf_validation_proportion", None, "offline", why)
            self._change("dataset.hf_rewrite", False, "offline", why)
            self._change("dataset.dataset_root", folder, "offline", why)
            for name in ("packed_train_data_path", "packed_val_data_path", "packed_metadata_path"):
                self._change(f"dataset.offline_packing_specs.{name}", None, "offline", "packed here from the JSONL")
            return
        from megatron.bridge.data.sources.hf import HFDatasetSourceConfig

        files = {"data_files": f"{folder}/training.jsonl"}
        dataset.source = HFDatasetSourceConfig(path_or_dataset="json", split="train", load_kwargs=files)
        dataset.validation_source = dataset.test_source = None
        self._change("dataset.hf_processor_path", None, "offline", "the tokenizer serves as processor")

    def _change(self, name: str, new: Any, kind: Any, why: str) -> None:
        values = read_values(self.config)
        if name in values and values[name] != new:
            self._apply(Change(name, values[name], new, kind, why))

    def _apply(self, change: Change) -> None:
        write_change(self.config, change)
        self.result["changes"].append(change.to_dict())

    def scale(self) -> None:
        """Make the config small, in place; what it was is kept for figures at the user's size."""
        self.full = copy.deepcopy(self.config.dataset)
        self.full_batch = self.config.train.global_batch_size or 0
        wishes = Wishes(self.iters, self.more, self.request["pack"], self.vocab_size, self.world_size)
        plan = plan_changes(read_values(self.config), wishes)
        for change in plan.changes:
            self._apply(change)
        self.layout = plan.layout
        self.result["layout"] = plan.layout.to_dict()
        self.result["own_layer_spec"] = use_cpu_layers(self.config.model)
        # Variables of the run belong to GPUs, and may change what a started program does.
        self.config.env_vars = {}

    def pack(self) -> dict[str, Any] | None:
        """Measure the samples and pack them, at the size of the rehearsal and at the user's own."""
        dataset = self.config.dataset
        if self.result["data"]["samples"] is None:
            return None
        small = getattr(dataset, "offline_packing_specs", None)
        limits = {"seq_length of the config": int(self.full.seq_length), "seq_length here": int(dataset.seq_length)}
        if not hasattr(dataset, "offline_packing_specs"):
            return None
        lengths = measure_lengths(dataset, self.tokenizer, scratch("data"), limits)
        if small is None:
            self._fit_batch(lengths["samples"])
            return {"packed": False, "lengths": lengths}
        here = pack_data(dataset, self.tokenizer, scratch("data"))
        self._fit_batch(here["packs"])
        found: dict[str, Any] = {"packed": True, "lengths": lengths, "here": here, "at_full_size": None}
        real = not self.result["data"]["made_up"]
        if real and self.full.offline_packing_specs.packed_sequence_size != small.packed_sequence_size:
            found["at_full_size"] = self._pack_at_full_size()
        if real and not self.result["data"]["cut"]:
            self._compare_with_batch((found["at_full_size"] or here)["packs"])
        return found

    def _fit_batch(self, rows: int) -> None:
        """Make the global batch no larger than the data, which Bridge refuses, down to one micro-batch a rank."""
        least = self.config.train.micro_batch_size * self.layout.dp
        most = max(least, rows // least * least)
        if self.config.train.global_batch_size > most:
            self._change("train.global_batch_size", most, "run", "no more than the data have")

    def _compare_with_batch(self, packs: int) -> None:
        if packs < self.full_batch:
            self.result["problems"].append(
                f"the data fill {packs} of the config's packs, fewer than global_batch_size {self.full_batch}: "
                "Megatron-Bridge stops with 'Not enough train samples for a single global batch'"
            )

    def _pack_at_full_size(self) -> dict[str, Any]:
        folder = scratch("data-full")
        (folder / "training.jsonl").write_bytes((scratch("data") / "training.jsonl").read_bytes())
        return pack_data(self.full, self.tokenizer, folder)

    def make_base(self) -> Path | None:
        """Train one step without adapters and save it, when the config has adapters to put onto a checkpoint."""
        if self.config.peft is None:
            self._change("checkpoint.pretrained_checkpoint", None, "offline", "random weights of the small size")
            return None
        base = copy.deepcopy(self.config)
        base.peft = None
        base.train.train_iters = 1
        _checkpoints(base, save=scratch("base"), interval=1)
        base.checkpoint.pretrained_checkpoint = None
        self.began = time.monotonic()
        self.channel.progress("saving a small model for the adapters", STAGES.index("train"), len(STAGES))
        outcome = run_training(base, self.layout.ranks)
        self.done("base", {"peft": type(self.config.peft).__name__}, outcome.seconds)
        return scratch("base")

    def train(self, base: Path | None) -> None:
        """Train, save after `iters` steps, go on for a few more, and repeat those from the checkpoint."""
        self.channel.progress(_SAYING["train"], STAGES.index("train"), len(STAGES))
        self.began = time.monotonic()
        config = copy.deepcopy(self.config)
        config.train.train_iters = self.iters + self.more
        _checkpoints(config, save=scratch("checkpoint"), interval=self.iters)
        if base is not None:
            config.checkpoint.pretrained_checkpoint = str(base)
        capture = scratch("captured")

        def on_step(step: Mapping[str, Any]) -> None:
            self.channel.send("step", **dict(step))
            text = f"step {step['step']} of {self.iters}: loss {step['loss']:.4f}"
            self.channel.progress(text, STAGES.index("train"), len(STAGES))

        try:
            outcome = run_training(
                config, self.layout.ranks, finetune=base is not None, capture=capture, on_step=on_step
            )
        finally:
            captured = sorted(capture.glob("rank*_batch*.pt"))
            self.result["batch"] = readable_batch(captured[0]) if captured else None
        self.result["later_steps"] = outcome.steps[self.iters :]
        self.done("train", trained(outcome, self.iters, self.layout.dp), outcome.seconds)
        if self.iters not in outcome.saved:
            raise StageFailure("save", f"no checkpoint of step {self.iters} was written")
        self.done("save", {"steps": outcome.saved}, 0.0)
        self._stage("resume", lambda: self.resume(config, outcome))

    def resume(self, config: Any, before: Outcome) -> dict[str, Any]:
        """Load the checkpoint of the last step, and compare the steps after it with those of the run that went on."""
        self.channel.progress(_SAYING["resume"], STAGES.index("resume"), len(STAGES))
        config.checkpoint.load = config.checkpoint.save
        config.checkpoint.ckpt_step = self.iters
        config.checkpoint.save = None
        config.checkpoint.save_interval = None
        try:
            outcome = run_training(config, self.layout.ranks, finetune=True)
        except StageFailure as failure:
            failure.stage = "resume"
            raise
        return compared(before.steps[self.iters :], outcome.steps)


_SAYING: Final = {
    "import": "importing Megatron",
    "build": "building the config",
    "validate": "validating the config",
    "data": "reading the data",
    "packing": "packing the data",
    "train": "training",
    "resume": "resuming from the checkpoint",
}


def import_megatron() -> dict[str, Any]:
    """Import the training loop with everything that lets it run without a GPU; return the versions."""
    from skill_run.worker.inside import bridge_on_cpu, bridge_stubs, cuda_on_cpu
    from skill_run.worker.inside.partition import install_partition
    from skill_run.worker.inside.rehearse_optimizer import repair_resuming

    bridge_stubs.install()
    cuda_on_cpu.install()
    bridge_on_cpu.install()
    install_partition()
    repair_resuming()
    # Imported here once, so that no rank does it again.
    import megatron.bridge.training.finetune
    import megatron.bridge.training.gpt_step

    return {"megatron_bridge": megatron.bridge.__version__, "megatron_core": megatron.core.__version__}


def _checkpoints(config: Any, *, save: Path, interval: int) -> None:
    config.checkpoint.save = str(save)
    config.checkpoint.save_interval = interval
