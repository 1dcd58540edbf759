"""Read what torch.save wrote, in a child process of an interpreter that has torch; nothing in the file can run there.

The child is `worker/read_torch.py`: it loads with weights_only=True and writes plain bytes, which are read here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NoReturn

from numpy.typing import NDArray

from skill_run.batch.npz import archive_members
from skill_run.batch.safetensors import parse_safetensors
from skill_run.config.text import parse_json
from skill_run.errors import EXIT_MISSING, InputError, MissingError
from skill_run.report.safe import clip, flow

ENVIRONMENT: Final = "SKILL_RUN_PYTHON"
TIMEOUT_SECONDS: Final = 180
_CHILD: Final = Path(__file__).parents[1] / "worker" / "read_torch.py"
_HOW: Final = (
    f"name one with --python PATH or ${ENVIRONMENT} (pip install torch makes one), or save the batch as .safetensors "
    "or .npz"
)
_GLOBAL: Final = re.compile(r"GLOBAL (\S+)")
_DETAIL: Final = re.compile(r"WeightsUnpickler error:\s*([^\n]+)")


def read_torch(paths: Sequence[Path], python: str | Path | None, limit: int) -> list[Any]:
    """Return what each file holds: dicts, lists, numbers, text and null, with tensors as arrays.

    python: the interpreter, else $SKILL_RUN_PYTHON, else this one when it has torch. limit: most bytes of all tensors.
    Raises MissingError without an interpreter that has a safe torch, InputError for a file that cannot be read.
    """
    interpreter = _interpreter(python, paths[0])
    for path in paths:
        _check_size(path, limit)
    with tempfile.TemporaryDirectory(prefix="skill-run-") as folder:
        out = Path(folder) / "batch"
        # The absolute path: the folder this runs in must not decide which program starts.
        command = [interpreter, "-I", str(_CHILD), str(out), str(limit), *(str(path.absolute()) for path in paths)]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=TIMEOUT_SECONDS,
                env=_environment(),
                cwd=folder,
                check=False,
            )
        except OSError as error:
            raise MissingError(f"{interpreter} cannot be started: {error.strerror}; {_HOW}") from error
        except subprocess.TimeoutExpired as error:
            raise InputError(f"{paths[0]} was not loaded within {TIMEOUT_SECONDS} seconds by {interpreter}") from error
        if done.returncode != 0 or not out.is_file():
            _explain(done, paths, interpreter)
        arrays, metadata = parse_safetensors(out.read_bytes(), str(out))
    trees = parse_json(metadata["tree"], str(paths[0]))
    return [_grown(tree, arrays) for tree in trees]


def _interpreter(python: str | Path | None, path: Path) -> str:
    asked = python if python is not None else os.environ.get(ENVIRONMENT)
    if asked is None or not str(asked):
        if find_spec("torch") is not None:
            return sys.executable
        raise MissingError(f"{path} can only be read by an interpreter that has torch: {_HOW}")
    found = shutil.which(str(asked))
    if found is None:
        raise MissingError(f"{clip(flow(str(asked)), 200)} is no program that can be started; {_HOW}")
    return os.path.abspath(found)


def _environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("TORCH_FORCE_")}
    return {**kept, "TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def _check_size(path: Path, limit: int) -> None:
    """Refuse what would unpack to too much; torch itself stores its parts without compression."""
    if path.stat().st_size > limit:
        raise InputError(f"{path} has {path.stat().st_size} bytes, which is more than one batch can have ({limit})")
    if zipfile.is_zipfile(path) and any(
        member.compress_type != zipfile.ZIP_STORED for member in archive_members(path, limit)
    ):
        raise InputError(f"{path} holds compressed parts, which torch.save never writes; it is not read")


def _explain(done: subprocess.CompletedProcess[bytes], paths: Sequence[Path], interpreter: str) -> NoReturn:
    told = _told(done.stdout)
    kind, reason = str(told.get("kind", "")), str(told.get("reason", ""))
    number = told.get("file")
    path = paths[number] if isinstance(number, int) and 0 <= number < len(paths) else paths[0]
    if kind == "no torch":
        raise MissingError(f"{interpreter} cannot import torch ({_short(reason)}), which {path} needs; {_HOW}")
    if kind == "old torch":
        raise MissingError(
            f"{interpreter} has torch {_short(reason)}, whose weights_only loading is not safe; torch 2.10 or newer is "
            f"needed: {_HOW}"
        )
    if done.returncode == EXIT_MISSING:
        raise MissingError(f"{interpreter} cannot read {path}; {_HOW}")
    if kind == "refused":
        raise InputError(f"{path} {_short(reason)}")
    asked = _GLOBAL.search(reason)
    if asked is not None:
        raise InputError(
            f"{path} asks for {_short(asked[1])}, which is code and no tensor; it is not read and nothing in it was "
            "run. Save a dict of plain tensors (skill-run inspect --capture-snippet prints how)"
        )
    if kind == "load":
        raise InputError(
            f"{path} is nothing that torch.save wrote, or is truncated or too large: {_short(_detail(reason))}"
        )
    if kind == "memory" or done.returncode < 0:
        raise InputError(f"{path} needs more memory to load than a batch can have")
    last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
    raise InputError(f"{path} was not read by {interpreter}: {_short(last[0]) if last else 'it said nothing'}")


def _detail(reason: str) -> str:
    """Return the first sentence of what torch said, without its advice to load unsafely."""
    found = _DETAIL.search(reason)
    told = found[1] if found is not None else reason.split(". ")[0]
    return "it holds more than tensors and numbers" if "weights_only" in told or "Weights only" in told else told


def _told(output: bytes) -> dict[str, Any]:
    lines = output.decode("utf-8", "replace").strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _short(text: str) -> str:
    return clip(flow(text), 160)


def _grown(node: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Any:
    """Put the arrays back into the tree."""
    if "t" in node:
        return arrays[str(node["t"])]
    if "d" in node:
        return {key: _grown(item, arrays) for key, item in node["d"]}
    if "l" in node:
        return [_grown(item, arrays) for item in node["l"]]
    return node["v"]
