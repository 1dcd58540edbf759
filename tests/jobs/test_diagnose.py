from __future__ import annotations

import re
import re._parser as parser
from pathlib import Path
from typing import Any

import pytest

from skill_run.jobs.diagnose import WORDS, Diagnosis, diagnose
from skill_run.jobs.logs import Log, marked_lines
from skill_run.jobs.model import Job, Plan, State
from skill_run.jobs.signatures import KINDS, Signature, signatures

HEALTHY = """\
 [2026-11-30 05:07:20] iteration 5/ 8 | consumed samples: 20 | lm loss: 6.35E+00 | number of nan iterations:   0 |
successfully saved checkpoint from iteration       5 to /ckpt [ t 1/1, p 1/1 ]
> building train, validation, and test datasets ...
NCCL version 2.21.5+cuda12.4
UserWarning: torch.nn.utils.clip_grad is deprecated
[after training is done] datetime: 2026-11-30 04:56:04
DEBUG:DotProductAttention:Selected backend = FusedAttention (sub-backend 1)
[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1
  calculate_per_token_loss: true
  error_injection_rate: 0
  HF_HUB_OFFLINE: '1'
"""
TRACEBACK = """\
[rank{0}]: Traceback (most recent call last):
[rank{0}]:   File "/job/train.py", line 10, in <module>
[rank{0}]:     main()
[rank{0}]: {1}
"""
TORCHRUN = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-30_05:00:03
  host      : n1
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 100)
  error_file: <N/A>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-30_05:00:01
  host      : n1
  rank      : 3 (local_rank: 3)
  exitcode  : 1 (pid: 103)
  error_file: <N/A>
"""
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 3 has a total capacity of 79.11 GiB "
    "of which 1.50 GiB is free. Of the allocated memory 70.00 GiB is allocated by PyTorch, and 1.20 GiB is reserved by "
    "PyTorch but unallocated."
)
CLOSED = "RuntimeError: [/gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:14002"


@pytest.fixture
def told(tmp_path: Path) -> Any:
    """Return a function that diagnoses a failed job of these logs."""

    def diagnosis(*, exit_code: int | None = 1, reason: str = "exit code 1", world: int = 4, **logs: str) -> Diagnosis:
        for name, text in logs.items():
            path = tmp_path / (f"logs/{name}.log" if name.startswith("rank") else f"{name}.log")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        plan = Plan(
            id="j",
            name="j",
            engine="local",
            command=("x",),
            folder=str(tmp_path),
            world_size=world,
            ranks_per_node=world,
        )
        return diagnose(Job(plan, State.FAILED, "", "", exit_code=exit_code, reason=reason))

    return diagnosis


@pytest.mark.parametrize("signature", signatures(), ids=lambda each: each.id)
def test_every_sample_is_known_by_its_own_signature(signature: Signature) -> None:
    assert next(each for each in signatures() if each.match(signature.sample) is not None) is signature
    assert any(word in signature.sample.encode() for word in WORDS)
    assert signature.kind in KINDS
    for text in (signature.cause, signature.fix):
        assert text.endswith(".")
    groups = re.findall(r"\{(\w+)\}", signature.found)
    assert set(groups) <= set(signature.pattern.groupindex)


def test_signatures_have_names_of_their_own() -> None:
    names = [each.id for each in signatures()]
    assert len(names) == len(set(names)) >= 84


@pytest.mark.parametrize("line", HEALTHY.splitlines())
def test_a_healthy_line_is_no_failure(line: str) -> None:
    assert [each.id for each in signatures() if each.match(line) is not None] == []


@pytest.mark.parametrize("signature", signatures(), ids=lambda each: each.id)
def test_no_pattern_can_repeat_without_bound_or_inside_a_repeat(signature: Signature) -> None:
    def check(tree: Any, inside: bool) -> None:
        for operation, value in tree:
            name = str(operation)
            if name in ("MAX_REPEAT", "MIN_REPEAT"):
                low, high, part = value
                assert high <= 400
                assert not (inside and high > 1 and low != high)
                check(part, inside or high > 1)
            elif name == "SUBPATTERN":
                check(value[3], inside)
            elif name == "BRANCH":
                for branch in value[1]:
                    check(branch, inside)

    check(parser.parse(signature.pattern.pattern), False)


@pytest.mark.parametrize("signature", [each for each in signatures() if each.kind == "error"], ids=lambda each: each.id)
def test_a_failure_is_found_in_a_log_of_healthy_lines(told: Any, signature: Signature) -> None:
    found = told(job=HEALTHY * 50 + signature.sample + "\n" + HEALTHY)
    assert (found.signature, found.fix) == (signature.id, signature.fix)
    assert signature.cause in found.summary
    assert found.log == "job.log"


def test_memory_that_ran_out_is_told_with_its_sizes_and_its_rank(told: Any) -> None:
    found = told(job=HEALTHY + TRACEBACK.format(3, OOM) + TRACEBACK.format(0, CLOSED) + TORCHRUN)
    assert found.signature == "oom-cuda"
    assert found.rank == 3
    assert found.summary.startswith(
        "rank 3: GPU memory ran out: 20.00 GiB were asked for on GPU 3, which has 79.11 GiB. Weights"
    )
    assert "Another rank ended first" in found.also


def test_memory_is_fragmented_only_when_what_lies_unused_would_do(told: Any) -> None:
    assert told(job=OOM.replace("1.20 GiB is reserved", "30.00 GiB is reserved")).signature == "oom-cuda-fragmented"


def test_of_an_unknown_failure_the_first_failing_ranks_own_error_is_shown(told: Any) -> None:
    log = TRACEBACK.format(0, CLOSED) + TRACEBACK.format(3, "KeyError: 'packed_key'") + TORCHRUN
    found = told(job=log)
    assert (found.signature, found.rank) == (None, 3)
    assert found.summary == "rank 3: failed with: KeyError: 'packed_key'"


def test_without_a_launchers_word_the_rank_whose_error_is_no_consequence_is_taken(told: Any) -> None:
    found = told(job=TRACEBACK.format(1, CLOSED) + TRACEBACK.format(2, "my.own.StrangeError: x"))
    assert (found.rank, found.evidence) == (2, "my.own.StrangeError: x")


def test_logs_of_ranks_tell_the_rank_by_their_names(told: Any) -> None:
    found = told(
        job="starting\n", rank0=f"Traceback (most recent call last):\n{CLOSED}\n", rank1="ValueError: bad row 7\n"
    )
    assert (found.rank, found.log, found.evidence) == (1, "logs/rank1.log", "ValueError: bad row 7")


def test_the_first_task_that_srun_names_is_the_one(told: Any) -> None:
    log = "0: RuntimeError: late\n2: ValueError: early\nsrun: error: n2: task 2: Exited with exit code 1\n"
    found = told(job=log + "srun: error: n1: task 0: Exited with exit code 1\n")
    assert (found.rank, found.evidence) == (2, "ValueError: early")


def test_a_rank_that_was_killed_is_told_by_the_launchers_report_and_not_by_those_it_left(told: Any) -> None:
    """As the real torchrun writes it when rank 3 gets SIGKILL."""
    killed = TORCHRUN.replace("exitcode  : 1 (pid: 103)", "exitcode  : -9 (pid: 103)  (SIGKILL)")
    found = told(job=TRACEBACK.format(0, CLOSED) + killed)
    assert (found.signature, found.rank) == ("exit-signal-9", 3)
    assert found.also == ("Another rank ended first",)
    by_srun = told(job=TRACEBACK.format(0, CLOSED) + "srun: error: n2: task 2: Killed\n")
    assert (by_srun.signature, by_srun.rank) == ("exit-signal-9", 2)


def test_torchruns_error_files_tell_which_rank_was_first(told: Any, tmp_path: Path) -> None:
    for rank, when in ((0, 200), (2, 100)):
        place = tmp_path / f"logs/run/attempt_0/{rank}"
        place.mkdir(parents=True)
        (place / "error.json").write_text(f'{{"message": {{"message": "x", "extraInfo": {{"timestamp": "{when}"}}}}}}')
        (place / "stderr.log").write_text(f"ValueError: of rank {rank}\n")
    found = told(job="")
    assert (found.rank, found.evidence) == (2, "ValueError: of rank 2")


def test_of_a_time_out_the_rank_that_never_came_is_named(told: Any) -> None:
    line = (
        "[rank{0}]:[E1010 11:50:05.315 ProcessGroupNCCL.cpp:565] [Rank {0}] "
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=305, OpType=ALLREDUCE, Timeout(ms)=600000)\n"
    )
    found = told(job="".join(line.format(rank) for rank in (0, 1, 3)), exit_code=134)
    assert (found.signature, found.rank) == ("nccl-watchdog-timeout", 2)
    assert found.summary.startswith("A collective timed out: rank 2 never came, 3 of 4 ranks waited.")
    alone = told(job=line.format(1), exit_code=134)
    assert "rank 1 waited in ALLREDUCE number 305" in alone.summary


def test_a_time_out_after_another_ranks_error_is_not_the_cause(told: Any) -> None:
    line = (
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE, Timeout(ms)=6)\n"
    )
    assert told(job=line + TRACEBACK.format(1, OOM)).signature == "oom-cuda"


@pytest.mark.parametrize(
    ("reason", "signature"),
    [
        ("Slurm: TIMEOUT (TimeLimit)", "slurm-timeout"),
        ("Slurm: OUT_OF_MEMORY (OutOfMemory)", "oom-host-slurm"),
        ("Slurm: NODE_FAIL", "slurm-node-fail"),
        ("Slurm: PREEMPTED", "slurm-preempt"),
    ],
)
def test_what_the_engine_says_comes_first(told: Any, reason: str, signature: str) -> None:
    assert told(job=TRACEBACK.format(0, CLOSED), reason=reason).signature == signature


@pytest.mark.parametrize(
    ("code", "signature"),
    [(137, "exit-signal-9"), (139, "exit-signal-11"), (134, "abort"), (16, "rerun-disambiguate"), (17, "rerun-failed")],
)
def test_an_exit_code_speaks_when_the_log_does_not(told: Any, code: int, signature: str) -> None:
    assert told(job=HEALTHY, exit_code=code).signature == signature


def test_a_failure_without_any_trace_shows_the_end_of_the_log(told: Any) -> None:
    found = told(job="one\nlast words\n", exit_code=3, reason="exit code 3")
    assert found.summary == "ended with exit code 3; nothing known stands in its log, whose last line is: last words"
    assert told(job="", exit_code=3, reason="exit code 3").summary == "ended with exit code 3; no log was written"


def test_a_warning_is_believed_only_when_no_exception_speaks(told: Any) -> None:
    warning = "WARNING: No mapping found for megatron_param: decoder.x\n"
    assert told(job=warning).signature == "ckpt-no-mapping"
    assert told(job=warning + "KeyError: 1\n").signature is None


@pytest.mark.parametrize(
    "log",
    [
        "CUDA out of memory. Tried to allocate " + "1" * 10**6,
        "error " * 10**5,
        ("error: " + "a.b" * 600 + "\n") * 4000,
        "Error " + "(" * 10**5 + "\n" + "\x1b[31m" * 10**4,
        "\r".join(["error"] * 10**5),
        "No space left on device" * 10**4 + "\n" + "NVRM: Xid " * 10**4,
        "{" + "rank" * 10**4 + "}: error {asked} %s $(reboot)\n" + "\0" * 10**5,
    ],
    ids=range(7),
)  # fmt: skip
def test_hostile_logs_are_read_to_the_end(told: Any, log: str) -> None:
    found = told(job=log + "\nValueError: the real one\n")
    assert found.summary.isprintable()


def test_a_million_lines_are_read_and_the_error_in_their_middle_is_found(told: Any, tmp_path: Path) -> None:
    block = HEALTHY * 1000
    with (tmp_path / "job.log").open("w") as stream:
        for number in range(91):
            stream.write(block if number != 45 else block + TRACEBACK.format(2, OOM))
    found = told()
    assert (found.signature, found.rank) == ("oom-cuda", 2)


def test_marked_lines_keep_the_first_and_the_last_and_their_offsets(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("".join(f"error {number}\nfine\n" for number in range(100)))
    lines = list(marked_lines(Log(path, "x.log", None), (b"error",), each=3, largest=2**30))
    assert [line.text for line in lines] == [f"error {number}" for number in (0, 1, 2, 97, 98, 99)]
    data = path.read_bytes()
    assert all(data[line.offset :].startswith(line.text.encode()) for line in lines)


def test_of_a_log_that_is_too_large_both_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("error first\n" + "fine\n" * 10000 + "error middle\n" + "fine\n" * 20000 + "error last\n")
    lines = marked_lines(Log(path, "x.log", None), (b"error",), each=9, largest=40000)
    assert [line.text for line in lines] == ["error first", "error last"]
