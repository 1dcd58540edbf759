"""What a job's run proves: boundaries in its captured batches, alignment, every token accounted for, finite losses."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from skill_run.errors import InputError
from skill_run.jobs.folder import LOG, METRICS, read_record
from skill_run.jobs.model import ENDED, Job, State
from skill_run.jobs.service import Jobs
from skill_run.verify.run import CheckResult, result_of
from skill_run.worker.environments import list_workers

if TYPE_CHECKING:
    from skill_run.batch.inspect import InspectionReport

EVIDENCE: Final = "evidence.json"
CAPTURE: Final = "capture"
_MOST_BATCHES: Final = 4
_MOST_LINES: Final = 2_000_000
_ALIGNED: Final = re.compile(r"skill-run: pad_seq_to_mult (\d+) (covers|does NOT cover) the (\d+) chunks of CP (\d+)")
_LOG_BYTES: Final = 64 * 2**20


def verify_job(name: str, *, python: str | None = None, jobs: Jobs | None = None) -> Iterator[CheckResult]:
    """Check what the run of a job left behind and yield each result as it is known.

    name: id or name of a job that has ended. python: interpreter with torch for the captured batches, else that of a
    worker. Raises InputError for a job that is not there or that still runs.
    """
    job = (jobs or Jobs()).get(name)
    if job.state not in ENDED:
        raise InputError(f"{job.id} is {job.state}; its evidence is complete when it has ended")
    folder = Path(job.plan.folder)
    told = read_record(folder / EVIDENCE) or {}
    evidence = _Evidence(job, folder, told, python or _interpreter(job))
    yield result_of("job", evidence.check_end)
    yield result_of("captured batches", evidence.check_batches)
    yield result_of("alignment", evidence.check_alignment)
    yield result_of("tokens", evidence.check_tokens)
    yield result_of("loss", evidence.check_losses)


class _Evidence:
    """The files of one job; each check returns whether it passed, and a sentence."""

    def __init__(self, job: Job, folder: Path, told: Mapping[str, Any], python: str | None) -> None:
        self.job, self.folder, self.told, self.python = job, folder, told, python
        self.steps = list(_steps(folder / METRICS))
        self.reports: dict[int, InspectionReport] = {}

    def check_end(self) -> tuple[bool, str]:
        """The job came to its own end."""
        done = self.steps[-1]["step"] if self.steps else 0
        wanted = self.told.get("train_iters")
        detail = f"{self.job.state} after step {done}" + (f" of {wanted}" if wanted else "")
        passed = self.job.state is State.SUCCEEDED and (wanted is None or done == wanted)
        return passed, detail + (f": {self.job.reason}" if self.job.reason else "")

    def check_batches(self) -> tuple[bool, str]:
        """The captured micro-batches hold boundaries, and nothing in them is wrong."""
        from skill_run.batch.inspect import inspect_batch

        files = sorted((self.folder / CAPTURE).glob("rank*_batch*.pt"), key=_numbers)
        if not files:
            return False, f"no micro-batch was captured in {self.folder / CAPTURE}"
        first = _numbers(files[0])[0]
        # As many as a step reads, so that its tokens can be compared.
        wanted = self.steps[0].get("micro_batches", 1) if self.steps else 1
        for path in [path for path in files if _numbers(path)[0] == first][: max(1, min(wanted, _MOST_BATCHES))]:
            self.reports[_numbers(path)[1]] = inspect_batch(
                path, bridge=self.told.get("bridge"), cp=self.told.get("cp"), tp=self.told.get("tp"), python=self.python
            )
        bad = [finding for report in self.reports.values() for finding in report.at_least("corruption")]
        sequences = sum(report.summary["sequences"] for report in self.reports.values())
        detail = (
            f"{len(self.reports)} micro-batches of rank {first} inspected, with the boundaries of {sequences} sequences"
        )
        if bad:
            return False, f"{detail}; {bad[0].rule}: {bad[0].message}"
        packed = self.told.get("pack_size") or self.told.get("in_batch_packing")
        if packed and not all(report.sequences for report in self.reports.values()):
            return False, f"{detail}; packing is on, but a batch holds no cu_seqlens"
        return True, detail + "; clean"

    def check_alignment(self) -> tuple[bool, str]:
        """Every sequence starts on the grid that context parallelism cuts at."""
        chunks = self.told.get("cp_chunks")
        if chunks is None:
            return False, f"the run wrote no {EVIDENCE}, so its alignment is not known"
        if not self.told.get("pack_size"):
            return True, "the data are not packed offline, so there is no multiple to check"
        multiple = self.told["pad_seq_to_mult"]
        said = _search(self.folder / LOG, _ALIGNED)
        if multiple % chunks:
            return False, f"pad_seq_to_mult {multiple} is no multiple of the {chunks} chunks of CP {self.told['cp']}"
        if said is None or (int(said[1]), int(said[3])) != (multiple, chunks):
            return False, f"pad_seq_to_mult {multiple} fits, but the log does not say that the run used it"
        return True, f"the log says: pad_seq_to_mult {multiple} covers the {chunks} chunks of CP {self.told['cp']}"

    def check_tokens(self) -> tuple[bool, str]:
        """No step lost or invented tokens."""
        if not self.steps:
            return False, f"the run wrote no figures into {METRICS}"
        fault = next((text for step in self.steps if (text := self._fault(step)) is not None), None)
        numbers = [step["step"] for step in self.steps]
        if fault is None and any(after > before + 1 for before, after in itertools.pairwise(numbers)):
            fault = "figures of some steps are missing"
        if fault is not None:
            return False, fault
        real, padded = (sum(step.get(name, 0) for step in self.steps) for name in ("tokens", "padded_tokens"))
        share = f", {1 - real / padded:.1%} padding" if padded and real else ""
        detail = f"{real} real of {padded} tokens in {len(self.steps)} steps{share}"
        return self._against_capture(detail)

    def _fault(self, step: Mapping[str, Any]) -> str | None:
        number, real, padded = step["step"], step.get("tokens"), step.get("padded_tokens", 0)
        expected = _micro_batches(self.told)
        if padded <= 0:
            return f"step {number} has no tokens"
        if real is not None and not 0 < real <= padded:
            return f"step {number} has {real} real tokens of {padded}"
        if expected is not None and step.get("micro_batches") != expected:
            return f"step {number} read {step.get('micro_batches')} micro-batches, and {expected} make a global batch"
        if (step.get("trained_tokens") or 0) <= 0:
            return f"no token of step {number} is trained on"
        return None

    def _against_capture(self, detail: str) -> tuple[bool, str]:
        """Compare the first step's count with its captured micro-batches, where all of them are there."""
        first = self.steps[0]
        count = first.get("micro_batches", 0)
        whole = self.told.get("data_parallel") == 1 and set(range(count)) <= set(self.reports) and "tokens" in first
        if not whole:
            return True, detail
        captured = sum(_real(self.reports[number]) for number in range(count))
        if captured != first["tokens"]:
            return (
                False,
                f"{detail}; step {first['step']} counted {first['tokens']} tokens, its batches hold {captured}",
            )
        return True, f"{detail}; the {captured} of step {first['step']} are those of its captured batches"

    def check_losses(self) -> tuple[bool, str]:
        """Every loss and every gradient norm is finite."""
        if not self.steps:
            return False, "no step told a loss"
        for step in self.steps:
            for name in ("loss", "grad_norm"):
                value = step.get(name)
                if name == "loss" and value is None:
                    return False, f"step {step['step']} has no loss"
                if value is not None and not math.isfinite(value):
                    return False, f"{name} of step {step['step']} is {value}"
        return True, f"from {self.steps[0]['loss']:.4f} to {self.steps[-1]['loss']:.4f}, all finite"


def _micro_batches(told: Mapping[str, Any]) -> int | None:
    whole, micro = told.get("global_batch_size"), told.get("micro_batch_size")
    return whole // micro if isinstance(whole, int) and isinstance(micro, int) and micro > 0 else None


def _real(report: InspectionReport) -> int:
    """Return the real tokens of a batch, without the filler at the end of its packs."""
    return sum(each.logical for each in report.sequences if not report.is_filler(each))


def _steps(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(stream):
                if number >= _MOST_LINES:
                    return
                try:
                    found = json.loads(line)
                except ValueError:
                    continue
                if isinstance(found, dict) and isinstance(found.get("step"), int):
                    yield found
    except OSError:
        return


def _numbers(path: Path) -> tuple[int, int]:
    """Return rank and number of a captured batch."""
    found = re.fullmatch(r"rank(\d+)_batch(\d+)", path.stem)
    return (int(found[1]), int(found[2])) if found else (10**9, 10**9)


def _search(path: Path, pattern: re.Pattern[str]) -> re.Match[str] | None:
    """Return the last place in a log that fits; only its first part is read."""
    try:
        with path.open("rb") as stream:
            text = stream.read(_LOG_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    return next(iter(deque(pattern.finditer(text), maxlen=1)), None)


def _interpreter(job: Job) -> str | None:
    """Return an interpreter with torch: the job's own worker, else any worker that is one command."""
    if os.environ.get("SKILL_RUN_PYTHON"):
        return None
    workers = {worker.name: worker for worker in list_workers() if len(worker.command) == 1}
    own = workers.get(str(job.plan.extra.get("worker")))
    chosen = own or next(iter(workers.values()), None)
    return None if chosen is None else chosen.command[0]
