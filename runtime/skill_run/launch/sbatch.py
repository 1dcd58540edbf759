"""The text of a Slurm batch script: fixed lines, in which every value of the user stands quoted for the shell."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from skill_run.errors import InputError
from skill_run.jobs.model import Variable
from skill_run.launch.options import LaunchOptions, check_text

BATCH: Final = "job.sbatch"
# As upstream's resolve_slurm_master_port() (utils/slurm_utils.py), so that both sides agree.
_FIRST_PORT: Final = 15000
_EXIT_SAVED: Final = 75

_HEAD_NODE: Final = """\
# The first node is where the ranks meet; its address, as its name may not resolve.
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_ADDR=$(scontrol show node --oneliner "$head" | sed -n 's/.* NodeAddr=\\([^ ]*\\).*/\\1/p')
export MASTER_ADDR="${MASTER_ADDR:-$head}"
export MASTER_PORT=$((%d + SLURM_JOB_ID %% 10000))"""

_WAIT: Final = """\
step=$!
code=0
while :; do
    # The trap ends a wait early; the step goes on and is waited for again.
    wait "$step" && code=0 || code=$?
    kill -0 "$step" 2>/dev/null || break
done"""

# Read once Slurm has forgotten the job; written under its last name in one step.
_RECORD: Final = """\
printf '{"code": %d, "ended": "%s"}\\n' "$code" "$(date -u +%Y-%m-%dT%H:%M:%S+00:00)" > exit.json.unfinished
mv -- exit.json.unfinished exit.json"""


@dataclass(frozen=True, slots=True)
class Steps:
    """The argument lists that a batch script runs through srun: pack (None: nothing to pack) and one rank or launcher.

    per_node: tasks of a node: ranks for srun-native, 1 for a launcher.
    """

    pack: tuple[str, ...] | None
    ranks: tuple[str, ...]
    per_node: int


def render_sbatch(
    options: LaunchOptions,
    steps: Steps,
    variables: Mapping[str, Variable],
    *,
    folder: str,
    name: str,
    ranks_per_node: int,
    gpus: bool,
) -> str:
    """Return the text. Raises InputError for a value that a #SBATCH line cannot hold."""
    lines = ["#!/bin/bash", *_directives(options, steps, name, ranks_per_node, gpus), "", "set -euo pipefail"]
    lines += [f"cd -- {shlex.quote(folder)}", "rm -f -- save-and-exit ended-early exit.json", ""]
    for variable, each in sorted(variables.items()):
        lines.append(f"export {variable}={shlex.quote(each.value)}  # {each.reason}" if each.reason else "")
    lines += ["", _HEAD_NODE % _FIRST_PORT, ""]
    container = _container(options, folder)
    srun = ["srun", "--kill-on-bad-exit=1"]
    lines += _check_folder(folder)
    if steps.pack is not None:
        lines += ["# Packed once, before the ranks start: a rank that packs alone lets the others time out."]
        lines += [_joined(["srun", "--nodes=1", "--ntasks=1", *container, *steps.pack]), ""]
    if options.signal_seconds:
        lines += [f"# {options.signal_seconds} s before the time limit: the ranks save a checkpoint and end."]
        lines += ["trap 'touch save-and-exit' USR1"]
    task = [*srun, f"--ntasks-per-node={steps.per_node}", *container, *steps.ranks]
    lines += [f"{_joined(task)} &", _WAIT]
    lines += ['if [ "$code" -eq 0 ] && [ -e ended-early ]; then', f"    code={_EXIT_SAVED}"]
    if options.requeue:
        # Slurm ends this script itself when it takes the job back.
        lines += [
            "    if [ -e save-and-exit ]; then",
            '        scontrol requeue "$SLURM_JOB_ID"',
            '        exit "$code"',
        ]
        lines += ["    fi"]
    lines += ["fi"]
    lines += [_RECORD, 'exit "$code"', ""]
    return "\n".join(lines)


def _directives(options: LaunchOptions, steps: Steps, name: str, ranks_per_node: int, gpus: bool) -> list[str]:
    pairs: list[tuple[str, str | None]] = [
        ("job-name", name),
        ("account", options.account),
        ("partition", options.partition),
        ("nodes", str(options.nodes)),
        ("ntasks-per-node", str(steps.per_node)),
        ("gres", options.gres),
        ("gpus-per-node", str(ranks_per_node) if gpus and options.gres is None else None),
        ("time", options.time),
        ("output", "job.log"),
        ("open-mode", "append"),
        ("signal", f"B:USR1@{options.signal_seconds}" if options.signal_seconds else None),
    ]
    lines = [f"#SBATCH --{option}={_directive(option, value)}" for option, value in pairs if value is not None]
    return [*lines, "#SBATCH --requeue" if options.requeue else "#SBATCH --no-requeue"]


def _directive(option: str, value: str) -> str:
    """Return a value as sbatch reads it: its own small quoting, without line breaks and escapes."""
    check_text(f"--{option}", value)
    if '"' in value or "\\" in value or "%" in value:
        raise InputError(
            f"--{option} cannot hold quotes, backslashes or per cent signs in a batch script: {value[:80]!r}"
        )
    return value if all(c.isalnum() or c in "-_.:,@/+=" for c in value) and value.isascii() else f'"{value}"'


def _container(options: LaunchOptions, folder: str) -> list[str]:
    if options.container_image is None:
        return []
    mounts = ",".join([f"{folder}:{folder}", *options.container_mounts])
    return [
        f"--container-image={options.container_image}",
        f"--container-mounts={mounts}",
        "--no-container-mount-home",
        f"--container-workdir={folder}",
    ]


def _check_folder(folder: str) -> list[str]:
    there = shlex.quote(f"{folder}/run.json")
    check = ["srun", "--ntasks-per-node=1", '--ntasks="$SLURM_NNODES"', "test", "-e", there]
    said = shlex.quote(f"skill-run: not every node sees {folder}; give --folder on a file system that they share")
    return [f"{' '.join(check)} || {{ echo {said} >&2; exit 1; }}", ""]


def _joined(words: Sequence[str]) -> str:
    return shlex.join(words)
