"""Which command of a shell text starts the training, and on how many ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from skill_run.config.model import Location, Remark, Unknown
from skill_run.config.shell import Command, Script, Word, readable, unknown_name, unknown_reason
from skill_run.errors import InputError

MAX_SHELLS: Final = 4
MAX_WRAPPERS: Final = 16

# Programs that start the command given in their arguments.
_WRAPPERS: Final = {
    *("srun", "uv", "env", "exec", "time", "nohup", "timeout", "nice", "numactl", "taskset", "stdbuf", "sudo", "eval"),
    *("nsys", "mpirun", "mpiexec", "singularity", "apptainer", "docker", "podman", "enroot", "poetry", "pixi", "conda"),
}
_SHELLS: Final = {"bash", "sh", "zsh"}
_PYTHON = re.compile(r"python[0-9.]*")
_TORCHRUN_MODULES: Final = {"torch.distributed.run", "torch.distributed.launch"}
_TORCHRUN_SWITCHES: Final = {"standalone", "no-python", "run-path", "use-env", "module", "m", "signals-to-handle"}
_PYTHON_VALUES: Final = {"-X", "-W", "--check-hash-based-pycs"}
LAUNCHER: Final = "run_recipe.py"
# scripts/training/train.sh (0.6 and later) hands its arguments to setup_experiment.py, which submits run_recipe.py.
_SUBMITTERS: Final = {"train.sh", "setup_experiment.py"}
_SUBMITTER_VALUES: Final = {
    *("nodes", "gpus-per-node", "account", "partition", "time", "gres", "additional-slurm-params", "container-image"),
    *("mount", "env", "srun-arg", "experiment-name"),
}
_SUBMITTER_SWITCHES: Final = {"no-gpu-resource-request", "submission-dry-run", "wait", "lmc"}
_NUMBER = re.compile(r"[0-9]{1,9}")
_SHORT_SLURM: Final = {"-N": "nodes", "-n": "ntasks", "-G": "gpus", "-c": "cpus-per-task"}
_SLURM_OPTIONS: Final = {
    *("nodes", "ntasks", "ntasks-per-node", "gpus", "gpus-per-node", "gpus-per-task", "gres", "export"),
}


@dataclass(slots=True)
class Launch:
    """One launch line, taken apart.

    script: the Python file or module; arguments: what follows it; torchrun and srun: their options without dashes,
    None when the program is not part of the line; submitter: the line goes through train.sh, whose own options
    (by name without dashes) are not arguments.
    """

    words: Sequence[Word]
    script: Word
    arguments: Sequence[Word]
    surely: bool
    torchrun: Mapping[str, str] | None = None
    srun: Mapping[str, str] | None = None
    environment: dict[str, str] = field(default_factory=dict)
    submitter: Mapping[str, str] | None = None

    @property
    def place(self) -> Word:
        """The word to point at when the line as a whole is meant."""
        return self.words[0]


def _base(word: Word) -> str:
    return word.text.rpartition("/")[2]


def find_launch(script: Script, name: str) -> Launch | None:
    """Return the command that starts the training: run_recipe.py before torchrun before a script under srun.

    Among equals the last one counts, since data preparation comes first. None when no command starts Python.
    """
    best: tuple[int, Launch] | None = None
    for launch in _launches(script, name, 0):
        rank = 8 if _base(launch.script) == LAUNCHER or launch.submitter is not None else 0
        rank += 4 if any(word.text.partition("=")[0] in ("--recipe", "--model") for word in launch.arguments) else 0
        rank += 2 if launch.torchrun is not None else 0
        rank += (1 if launch.srun is not None else 0) - (0 if launch.surely else 1)
        if best is None or rank >= best[0]:
            best = rank, launch
    return best[1] if best else None


def _launches(script: Script, name: str, depth: int) -> Iterable[Launch]:
    for command in script.commands:
        yield from _launches_of(command, script, name, depth)


def _launches_of(command: Command, script: Script, name: str, depth: int) -> Iterable[Launch]:
    words = command.words
    environment = dict(command.environment)
    srun: dict[str, str] | None = None
    wrappers = 0
    for index, word in enumerate(words):
        base = _base(word)
        wrappers += base in ("srun", "env")
        if wrappers > MAX_WRAPPERS:
            raise InputError(
                f"{name}:{word.line}: a command starts srun or env more than {MAX_WRAPPERS} times; use one"
            )
        if base in _SHELLS and index + 1 < len(words) and _base(words[index + 1]) not in _SUBMITTERS:
            yield from _inner(command, words[index + 1 :], srun, environment, script, name, depth)
            return
        if base == "eval":
            yield from _body(" ".join(w.text for w in words[index + 1 :]), word, srun, environment, script, name, depth)
            return
        if base == "torchrun" or _PYTHON.fullmatch(base) or base.endswith(".py") or base in _SUBMITTERS:
            launch = _take_apart(words, index)
            if launch is not None:
                launch.srun = srun
                launch.environment = environment
                launch.surely = command.status == "run"
                yield launch
            return
        if index == 0 and base not in _WRAPPERS | _SHELLS and unknown_name(word.text) is None:
            return
        if base == "srun":
            srun = slurm_options([w.text for w in words[index + 1 :]])
            environment.update(_pairs(srun.get("export", "").split(",")))
        elif base == "env":
            environment.update(_pairs(w.text for w in words[index + 1 :]))


def _pairs(texts: Iterable[str]) -> dict[str, str]:
    """Return the leading NAME=VALUE texts whose values are known."""
    found = {}
    for text in texts:
        name, equal, value = text.partition("=")
        if equal and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) and unknown_name(value) is None:
            found[name] = value
    return found


def _inner(
    command: Command,
    rest: Sequence[Word],
    srun: dict[str, str] | None,
    environment: dict[str, str],
    script: Script,
    name: str,
    depth: int,
) -> Iterable[Launch]:
    """Look into the text of `bash -c TEXT`."""
    for index, word in enumerate(rest[:-1]):
        if re.fullmatch(r"-[a-z]*c", word.text):
            launches = list(_body(rest[index + 1].text, rest[index + 1], srun, environment, script, name, depth))
            for launch in launches:
                launch.surely = launch.surely and command.status == "run"
            yield from launches
            return


def _body(
    text: str,
    at: Word,
    srun: dict[str, str] | None,
    environment: dict[str, str],
    script: Script,
    name: str,
    depth: int,
) -> Iterable[Launch]:
    if depth >= MAX_SHELLS:
        return
    inner = Script(text, name, {**script.visible(), **environment}, depth + 1)
    for launch in _launches(inner, name, depth + 1):
        moved = {id(word): _moved(word, at) for word in launch.words}
        launch.script = moved[id(launch.script)]
        launch.arguments = [moved[id(word)] for word in launch.arguments]
        launch.words = [moved[id(word)] for word in launch.words]
        launch.srun = launch.srun if launch.srun is not None else srun
        launch.environment = {**environment, **inner.environment(), **launch.environment}
        yield launch


def _moved(word: Word, at: Word) -> Word:
    """Return the place in the outer text of a word of an inner text that starts at `at`."""
    return Word(word.text, at.line + word.line - 1, word.column if word.line > 1 else at.column)


def _take_apart(words: Sequence[Word], index: int) -> Launch | None:
    """Split the words from the launcher at `index` on; None when they start no script."""
    base = _base(words[index])
    if base in _SUBMITTERS:
        return _submitted(words, index)
    if base.endswith(".py"):
        return Launch(words, words[index], words[index + 1 :], True)
    if base == "torchrun":
        return _torchrun(words, index + 1)
    at = index + 1
    while at < len(words):
        text = words[at].text
        if text == "-m":
            if at + 1 >= len(words):
                return None
            if words[at + 1].text in _TORCHRUN_MODULES:
                return _torchrun(words, at + 2)
            return Launch(words, words[at + 1], words[at + 2 :], True)
        if text == "-c" or text == "-":
            return None
        if not text.startswith("-"):
            return _take_apart(words, at) if _base(words[at]) in _SUBMITTERS else _plain(words, at)
        at += 2 if text in _PYTHON_VALUES else 1
    return None


def _plain(words: Sequence[Word], at: int) -> Launch:
    return Launch(words, words[at], words[at + 1 :], True)


def _submitted(words: Sequence[Word], index: int) -> Launch:
    """Take a line through train.sh apart: its own options, and what it hands to run_recipe.py."""
    options: dict[str, str] = {}
    arguments: list[Word] = []
    at = index + 1
    while at < len(words):
        text = words[at].text
        name, equal, value = text.lstrip("-").partition("=")
        at += 1
        if not text.startswith("-") or name not in _SUBMITTER_VALUES | _SUBMITTER_SWITCHES:
            arguments.append(words[at - 1])
            continue
        if not equal and name in _SUBMITTER_VALUES and at < len(words):
            value = words[at].text
            at += 1
        options[name] = value
    return Launch(words, words[index], arguments, True, submitter=options)


def _torchrun(words: Sequence[Word], at: int) -> Launch | None:
    options: dict[str, str] = {}
    while at < len(words):
        text = words[at].text
        if not text.startswith("-"):
            return Launch(words, words[at], words[at + 1 :], True, torchrun=options)
        name, equal, value = text.lstrip("-").partition("=")
        name = name.replace("_", "-")
        if not equal and name not in _TORCHRUN_SWITCHES and at + 1 < len(words):
            at += 1
            value = words[at].text
        options[name] = value
        at += 1
    return None


def slurm_options(texts: Sequence[str]) -> dict[str, str]:
    """Return the Slurm options among leading words that this module uses, by long name without dashes."""
    found: dict[str, str] = {}
    index = 0
    while index < len(texts):
        text = texts[index]
        short = _SHORT_SLURM.get(text[:2]) if not text.startswith("--") else None
        name, equal, value = text[2:].partition("=")
        if short is not None:
            value = text[2:].removeprefix("=")
            if not value and index + 1 < len(texts):
                index += 1
                value = texts[index]
            found[short] = value
        elif text.startswith("--") and name in _SLURM_OPTIONS:
            if not equal and index + 1 < len(texts):
                index += 1
                value = texts[index]
            found[name] = value
        elif text in ("torchrun",) or _PYTHON.fullmatch(text) or text in _SHELLS:
            break
        index += 1
    return found


def gpus_per_node(options: Mapping[str, str]) -> str | None:
    """Return the GPUs of a node as `--gpus-per-node` or `--gres=gpu[:TYPE]:N` gives them."""
    direct = options.get("gpus-per-node")
    if direct is not None:
        return direct.rpartition(":")[2]
    for resource in options.get("gres", "").split(","):
        if resource.startswith("gpu"):
            count = resource.rpartition(":")[2]
            return count if _NUMBER.fullmatch(count) else "1"
    return None


def _count(text: str, what: str) -> int | Unknown:
    reason = unknown_reason(text)
    if reason is not None:
        return Unknown(f"{what} {reason}")
    low, _, high = text.partition(":")
    if _NUMBER.fullmatch(low) and (not high or low == high) and int(low) > 0:
        return int(low)
    return Unknown(f"{what} is '{readable(text)[:40]}', which only the machine can tell")


def _product(first: int | Unknown, second: int | Unknown) -> int | Unknown:
    if isinstance(first, Unknown):
        return first
    return second if isinstance(second, Unknown) else first * second


def slurm_tasks(options: Mapping[str, str], what: str) -> int | Unknown:
    """Return the number of tasks of a job with these options: one per node when nothing says otherwise."""
    if "ntasks" in options:
        return _count(options["ntasks"], what)
    nodes = _count(options.get("nodes", "1"), what)
    return _product(nodes, _count(options.get("ntasks-per-node", "1"), what))


def world_size(launch: Launch, job: Mapping[str, str] | None) -> int | Unknown | None:
    """Return the number of ranks a launch starts; None when the line does not tell.

    job: the `#SBATCH` options, None outside a batch script.
    """
    if launch.submitter is not None:
        nodes = _count(launch.submitter.get("nodes", "1"), "--nodes")
        per_node = launch.submitter.get("gpus-per-node")
        return None if per_node is None else _product(nodes, _count(per_node, "--gpus-per-node"))
    if launch.torchrun is not None:
        options = launch.torchrun
        per_node = options.get("nproc-per-node", "1")
        if per_node in ("gpu", "auto"):
            per_node = gpus_per_node({**(job or {}), **(launch.srun or {})}) or per_node
        nodes = _count(options.get("nnodes", "1"), "--nnodes")
        return _product(nodes, _count(per_node, "--nproc-per-node"))
    if launch.srun is not None:
        given = {key: value for key, value in launch.srun.items() if key in _SLURM_OPTIONS}
        if job is None and not {"ntasks", "ntasks-per-node"} & given.keys():
            return Unknown("srun takes the number of tasks from the allocation it runs in")
        inherited = dict(job or {})
        if {"nodes", "ntasks-per-node"} & given.keys():
            inherited.pop("ntasks", None)
        return slurm_tasks({**inherited, **given}, "the number of Slurm tasks")
    told = launch.environment.get("WORLD_SIZE")
    return _count(told, "WORLD_SIZE") if told is not None else None


def slurm_remarks(launch: Launch, job: Mapping[str, str] | None, where: Location) -> list[Remark]:
    """Return what is wrong between Slurm's tasks and torchrun's processes."""
    if launch.torchrun is None or launch.srun is None:
        return []
    options = {**(job or {}), **launch.srun}
    nodes = _count(options.get("nodes", "1"), "nodes")
    per_node = _count(options.get("ntasks-per-node", ""), "tasks")
    if isinstance(per_node, Unknown) and "ntasks" in options:
        tasks = _count(options["ntasks"], "tasks")
        if isinstance(tasks, int) and isinstance(nodes, int):
            per_node = -(-tasks // nodes)
    if isinstance(per_node, int) and per_node > 1:
        return [
            Remark(
                "slurm-tasks-start-torchrun",
                f"srun starts {per_node} tasks on each node and every task starts its own torchrun, so that each node "
                f"runs {per_node} copies of the job on the same GPUs and ports. Set --ntasks-per-node=1, or leave out "
                "torchrun and start python directly.",
                location=where,
            )
        ]
    if isinstance(nodes, int) and nodes > 1 and "nnodes" not in launch.torchrun:
        return [
            Remark(
                "torchrun-without-nnodes",
                f"srun starts torchrun on {nodes} nodes, but torchrun is not told so (no --nnodes): each node trains "
                "alone on its own copy of the job.",
                location=where,
            )
        ]
    return []
