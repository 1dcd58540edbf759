"""What a user says about how a config is to be run, checked on its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from skill_run.errors import InputError
from skill_run.report.safe import printable

EngineName = Literal["local", "slurm"]
Launcher = Literal["torchrun", "srun", "fork"]
Device = Literal["gpu", "cpu"]

MOST_NODES: Final = 4096
MOST_RANKS_PER_NODE: Final = 256
_WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:,@/+=%-]{0,199}")
_TIME: Final = re.compile(r"(?:(\d{1,3})-)?(\d{1,3})(?::(\d{1,2}))?(?::(\d{1,2}))?")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_LONGEST: Final = 4096


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """How to run. Sizes of None are taken from the config; folder: where the job's own folder goes.

    gpu: kind such as h100; python: interpreter of the training environment; time: Slurm's form of a limit;
    signal_seconds: how long before the limit a checkpoint is saved; packed_data: folder for packed data ($NEMO_HOME);
    resume: checkpoint folder to go on from; from_scratch: random weights are meant; allow: rules whose findings are
    accepted; data, tokenizer, model, iters, pack: of a run on a CPU, as for rehearse.
    """

    engine: EngineName = "local"
    device: Device | None = None
    launcher: Launcher | None = None
    nodes: int = 1
    ranks_per_node: int | None = None
    gpu: str | None = None
    python: str | None = None
    name: str | None = None
    folder: str | None = None
    container_image: str | None = None
    container_mounts: tuple[str, ...] = ()
    account: str | None = None
    partition: str | None = None
    gres: str | None = None
    time: str | None = None
    requeue: bool = False
    signal_seconds: int = 120
    packed_data: str | None = None
    resume: str | None = None
    from_scratch: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    allow: tuple[str, ...] = ()
    fix: bool = False
    capture: int = 8
    data: str | None = None
    tokenizer: str | None = None
    model: str | None = None
    iters: int = 20
    pack: int = 1024
    worker: str | None = None

    def __post_init__(self) -> None:
        """Refuse what no engine can run, with a sentence."""
        _between("the number of nodes", self.nodes, 1, MOST_NODES)
        if self.ranks_per_node is not None:
            _between("the number of GPUs of a node", self.ranks_per_node, 1, MOST_RANKS_PER_NODE)
        _between("the seconds before the time limit", self.signal_seconds, 0, 86400)
        _between("the number of captured batches", self.capture, 0, 1000)
        _between("the number of steps", self.iters, 1, 1000)
        for what, word in (("account", self.account), ("partition", self.partition), ("gres", self.gres)):
            if word is not None and not _WORD.fullmatch(word):
                raise InputError(f"the {what} {_shown(word)} has characters that Slurm's names do not have")
        if self.time is not None:
            hours_of(self.time)
        self._check_texts()
        self._check_combination()

    def _check_texts(self) -> None:
        texts = {
            "name": self.name, "folder": self.folder, "interpreter": self.python,
            "container image": self.container_image,
            "packed-data folder": self.packed_data, "checkpoint to resume from": self.resume, "kind of GPU": self.gpu,
        }  # fmt: skip
        texts |= {f"container mount {number}": mount for number, mount in enumerate(self.container_mounts, 1)}
        for what, text in texts.items():
            if text is not None:
                check_text(f"the {what}", text)
        for name, value in self.env.items():
            if not _VARIABLE.fullmatch(name):
                raise InputError(f"{_shown(name)} is no name of an environment variable")
            check_text(f"the value of {name}", value, may_be_empty=True)

    def _check_combination(self) -> None:
        if self.engine == "local":
            if self.nodes > 1:
                raise InputError("the local engine runs on one node; --engine slurm takes --nodes")
            if self.launcher == "srun":
                raise InputError("srun starts ranks in Slurm only; give --engine slurm")
            given = ("account", "partition", "gres", "time", "container_image")
            wrong = next((name for name in given if getattr(self, name) is not None), None)
            if wrong is not None:
                raise InputError(f"--{wrong.replace('_', '-')} is an option of --engine slurm")
        if self.engine == "slurm" and self.launcher == "fork":
            raise InputError("forked ranks run on this machine only; Slurm starts ranks with srun or torchrun")
        if self.container_mounts and self.container_image is None:
            raise InputError("--container-mounts needs --container-image")
        if self.requeue and self.engine != "slurm":
            raise InputError("--requeue is an option of --engine slurm")
        if self.device == "cpu" and self.container_image is not None:
            raise InputError("a job on CPUs runs in the worker, not in a container")


def hours_of(time: str) -> float:
    """Return the hours of a Slurm time limit: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:...]."""
    found = _TIME.fullmatch(time)
    if found is None:
        raise InputError(f"the time limit {_shown(time)} is not of the form HH:MM:SS or D-HH:MM:SS")
    days, first, second, third = (int(part) if part is not None else None for part in found.groups())
    if days is not None:
        hours = days * 24 + (first or 0) + (second or 0) / 60 + (third or 0) / 3600
    elif third is not None:
        hours = (first or 0) + (second or 0) / 60 + third / 3600
    else:
        hours = (first or 0) / 60 + (second or 0) / 3600
    if hours <= 0:
        raise InputError(f"the time limit {_shown(time)} leaves no time")
    return hours


def check_text(what: str, text: str, *, may_be_empty: bool = False) -> str:
    """Return a text that fits into one line. Raises InputError for control characters, and for none or too many."""
    if not text.strip() and not may_be_empty:
        raise InputError(f"{what} is empty")
    if len(text) > _LONGEST:
        raise InputError(f"{what} is longer than {_LONGEST} characters")
    if any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or c in "\u2028\u2029" for c in text):
        raise InputError(f"{what} holds a line break or another control character: {_shown(text)}")
    return text


def absolute(path: str | Path) -> str:
    """Return a path as absolute text, without following links."""
    return str(Path(path).expanduser().absolute())


def _between(what: str, value: int, least: int, most: int) -> None:
    if isinstance(value, bool) or not least <= value <= most:
        raise InputError(f"{what} must be from {least} to {most}, not {value}")


def _shown(text: str) -> str:
    return repr(printable(text[:80]))
