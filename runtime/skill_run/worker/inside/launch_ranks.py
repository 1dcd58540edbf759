"""Run a job's own entry script on this machine's CPU: prepare its data, then be its ranks, or one of them."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

from skill_run.worker.inside.errors import RankFailure, RefusedError
from skill_run.worker.inside.launch_files import entry_modules, entry_script
from skill_run.worker.inside.ranks import Tell, run_ranks, start_gloo
from skill_run.worker.inside.rehearse import import_megatron
from skill_run.worker.inside.rehearse_build import fill_hub_cache
from skill_run.worker.inside.rehearse_data import make_tokenizer, scratch, training_file, write_training_data
from skill_run.worker.inside.rehearse_model import use_cpu_layers
from skill_run.worker.inside.rehearse_train import run_training, write_checkpoints_here

# Training steps may be long, and a person follows the job; hanging ranks are theirs to stop.
_SILENCE_SECONDS: Final = 7 * 86400.0
# Ended early with a checkpoint, so that it can go on: EX_TEMPFAIL of sysexits.h.
_EXIT_SAVED: Final = 75


def prepare(folder: Path) -> None:
    """Write data and tokenizer, let the real validate() judge, pack the data, and save what adapters are put onto."""
    run = _read(folder)
    cpu, data = run["cpu"], run["cpu"]["data"]
    fill_hub_cache(cpu["models"], [run["base"]["module"]] if "module" in run["base"] else [])
    if data["columns"]:
        source = training_file(data["source"]) if data["source"] is not None else None
        write_training_data(source, tuple(data["columns"]), scratch("data"))
    if cpu["make_tokenizer"]:
        made = scratch("data") / "training.jsonl" if data["columns"] and data["source"] is not None else None
        make_tokenizer(scratch("tokenizer"), made)
    if cpu["peft"]:
        # validate() asks whether it is there.
        _save_base(run, folder)
    entry = entry_script(folder)
    sys.argv = [str(folder / "train.py"), "--pack"]
    entry.main(change)


def change(config: Any) -> None:
    """Give a config what has no plain form: local layers, and no variables that are meant for GPUs."""
    use_cpu_layers(config.model)
    config.env_vars = {}


def be_ranks(folder: Path, size: int) -> int:
    """Be all ranks of the job, as forks of this process; return the job's exit code."""
    # The ranks save and end; this process only waits for them.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    signal.signal(signal.SIGUSR1, lambda number, frame: None)
    _, hooks = entry_modules(folder)
    entry = entry_script(folder)
    sys.argv = [str(folder / "train.py")]

    def train(rank: int, _tell: Tell) -> int:
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, signal.SIG_DFL)
        start_gloo(rank, size, timeout=_SILENCE_SECONDS)
        return _train(entry)

    try:
        code: int = max(run_ranks(size, train, silence=_SILENCE_SECONDS))
    except RankFailure as error:
        print(f"skill-run: {error}", file=sys.stderr, flush=True)
        return 1
    return code or (_EXIT_SAVED if (folder / hooks.ENDED_EARLY).exists() else 0)


def be_rank(folder: Path) -> int:
    """Be the rank that torchrun or srun made this process; return its exit code."""
    import torch.distributed as dist

    _, hooks = entry_modules(folder)
    rank = hooks.take_place()
    dist.init_process_group("gloo", init_method="env://", rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
    entry = entry_script(folder)
    sys.argv = [str(folder / "train.py")]
    return _train(entry)


def _train(entry: Any) -> int:
    write_checkpoints_here()
    try:
        entry.main(change)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _save_base(run: dict[str, Any], folder: Path) -> None:
    """Train one step without adapters and save it: a small model for them to be put onto."""
    config, _ = entry_modules(folder)
    base = config.build(run, folder)
    change(base)
    base.peft = None
    base.train.train_iters = 1
    base.checkpoint.pretrained_checkpoint = base.checkpoint.load = None
    base.checkpoint.save, base.checkpoint.save_interval = str(scratch("base")), 1
    run_training(base, run["world_size"])


def _read(folder: Path) -> dict[str, Any]:
    config, _ = entry_modules(folder)
    found = config.read_run(folder)
    assert isinstance(found, dict)
    return found


def run(folder: Path, mode: str, size: int) -> int:
    """Do what a command line asks for: prepare, ranks (prepare, then all ranks), or rank; return the exit code."""
    try:
        import_megatron()
        if mode in ("prepare", "ranks"):
            prepare(folder)
        if mode == "prepare":
            return 0
        return be_ranks(folder, size) if mode == "ranks" else be_rank(folder)
    except RefusedError as error:
        print(f"skill-run: {error}", file=sys.stderr, flush=True)
        return 1
