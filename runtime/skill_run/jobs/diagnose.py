"""Say why a job failed: which rank failed first, what its log shows, the likely cause and what to do.

Evidence is weighed in this order: what the engine says (a time limit, a lost node), a known failure in the log of the
rank that failed first, a known failure anywhere, an exception that is not known, traces that another rank failed, the
exit code. Logs are hostile input: reads and patterns are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from skill_run.jobs.folder import RANK_LOGS, read_record
from skill_run.jobs.logs import Line, Log, clean, find_logs, marked_lines, tail
from skill_run.jobs.model import Job
from skill_run.jobs.signatures import Signature, signatures
from skill_run.report.safe import clip

# Words of which each line that tells of a failure holds one; tests hold every sample against them.
WORDS: Final = (
    b"rror", b"ERROR", b"xception", b"ailed", b"FAIL", b"xited with", b"illed", b"imed out", b"imeout", b"CANCELLED",
    b"exitcode", b"Signal ", b"SIGTERM", b"OUT_OF_MEMORY", b"oom", b"No space left", b"quota", b"not found", b"in use",
    b"Duplicate GPU", b"NCCL WARN", b"got stuck", b"Xid", b"Disabling", b"No targets", b"No mapping", b"Can't find",
    b"heartbeat", b"NaN", b"out of memory", b"Interrupt", b"unbound variable", b"NODE", b"DUE TO",
)  # fmt: skip
_EACH: Final = 2000
_LARGEST: Final = 256 * 2**20
_SUMMARY_BYTES: Final = 4000
# A line that ends a Python traceback, behind the marks that launchers put before a line.
_MARK: Final = r"(?:\[(?:default|rank)?(?P<rank>\d{1,6})\]: ?|(?P<task>\d{1,6}): )?"
_EXCEPTION: Final = re.compile(
    rf"^{_MARK}(?P<name>(?:[A-Za-z_]\w{{0,60}}\.){{0,8}}[A-Za-z_]\w{{0,60}}(?:Error|Exception|Interrupt|Exit|Failure))(?::|$)"
)
_MARKED: Final = re.compile(rf"^{_MARK}")
_SAYS_RANK: Final = re.compile(r"\[[^\]]{0,80}\bRank (\d{1,6})\]")
_TASK: Final = re.compile(
    r"srun: error: (\S{1,80}): tasks? (\d{1,6})[\d,-]{0,200}: (?:Exited with exit code (\d{1,3})|(\w[\w ]{0,40}))"
)
_ROOT: Final = re.compile(
    r"Root Cause \(first observed failure\):.{0,400}?rank\s{0,12}: (\d{1,6}) .{0,200}?exitcode\s{0,12}: (-?\d{1,4})",
    re.DOTALL,
)
# What srun says instead of a code, and the codes by which a rank tells more than its log.
_WORDS_OF_SRUN: Final = {"Killed": 137, "Segmentation fault": 139, "Aborted": 134, "Terminated": 143}
_SIGNALS: Final = frozenset({137, 139, 134, 16, 17})
_WAITED: Final = frozenset({"nccl-watchdog-timeout", "gloo-timeout"})


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a job failed, in words, with the line that shows it.

    signature: id of the known failure, None for an unknown one; rank: the one that failed first, None when it cannot be
    told; evidence: the line; log: where it stands; also: titles of other failures that were seen.
    """

    summary: str
    signature: str | None = None
    title: str = ""
    cause: str = ""
    fix: str = ""
    rank: int | None = None
    evidence: str = ""
    log: str = ""
    also: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnosis as JSON-ready data."""
        return {name: getattr(self, name) for name in self.__slots__} | {"also": list(self.also)}


@dataclass(frozen=True, slots=True)
class _Hit:
    """A line that matters: a known failure, or an exception that is not known (signature None)."""

    line: Line
    rank: int | None
    is_exception: bool
    signature: Signature | None
    caught: Mapping[str, str]


def diagnose(job: Job) -> Diagnosis:
    """Return why a job failed, by its row and the logs in its folder."""
    folder = Path(job.plan.folder)
    logs = find_logs(folder)
    hits = [hit for log in logs for hit in _hits(log)]
    first_rank, first_code = _first_failing_rank(folder, logs, hits)
    also = _titles(hits)
    engine = next((each for each in signatures() if each.engine and each.engine.search(job.reason)), None)
    if engine is not None:
        return _known(engine, {}, None, job.reason, "", also)
    of_first = [hit for hit in hits if hit.rank == first_rank and first_rank is not None]
    signal = None if _own(of_first) else _by_code(first_code, _SIGNALS)
    if signal is not None and first_rank is not None:
        return _known(signal, {}, first_rank, f"rank {first_rank} ended with code {first_code}", "", also)
    best = _own(of_first) or _own(hits) or _consequence(hits, job.exit_code)
    if best is not None and best.signature is not None:
        rank = best.rank if best.rank is not None else first_rank
        if best.signature.id in _WAITED:
            return _waited(best, hits, job, also)
        return _known(best.signature, best.caught, rank, best.line.text, best.line.log.name, also)
    if best is not None:
        rank = best.rank if best.rank is not None else first_rank
        text = _without_mark(best.line.text)
        return Diagnosis(
            f"{_who(rank)}failed with: {clip(text, 400)}", rank=rank, evidence=text, log=best.line.log.name, also=also
        )
    return _by_exit_code(job, logs, first_rank, first_code, also)


def _hits(log: Log) -> list[_Hit]:
    found, seen = [], set()
    for line in marked_lines(log, WORDS, each=_EACH, largest=_LARGEST):
        text = _without_mark(line.text)
        rank = _rank_of(line)
        if (rank, text) in seen:
            continue
        seen.add((rank, text))
        is_exception = _EXCEPTION.match(line.text) is not None
        for signature in signatures():
            caught = signature.match(text)
            if caught is not None:
                found.append(_Hit(line, rank, is_exception, signature, caught))
                break
        else:
            if is_exception:
                found.append(_Hit(line, rank, True, None, {}))
    return found


def _own(hits: Sequence[_Hit]) -> _Hit | None:
    """Return the hit that is a cause by itself: a known one, best in an exception, else an exception not known."""
    known = [hit for hit in hits if hit.signature is not None and hit.signature.kind == "error"]
    best = next((hit for hit in known if hit.is_exception), None) or next(iter(known), None)
    return best or next((hit for hit in hits if hit.signature is None), None)


def _consequence(hits: Sequence[_Hit], exit_code: int | None) -> _Hit | None:
    """Return the hit that at least tells of a failure elsewhere."""
    for kind in ("warning", "cascade"):
        found = next((hit for hit in hits if hit.signature is not None and hit.signature.kind == kind), None)
        if found is not None:
            return found
    symptoms = [hit for hit in hits if hit.signature is not None and hit.signature.kind == "symptom"]
    # What only says that something ended is worth less than the exit code, unless it names a signal.
    return next((hit for hit in symptoms if hit.signature and hit.signature.exit and exit_code in (None, 1)), None)


def _by_code(code: int | None, codes: Collection[int] | None = None) -> Signature | None:
    """Return the known failure that an exit code, as of a shell, stands for."""
    if code is None or (codes is not None and code not in codes):
        return None
    return next((each for each in signatures() if code in each.exit), None)


def _first_failing_rank(folder: Path, logs: Sequence[Log], hits: Sequence[_Hit]) -> tuple[int | None, int | None]:
    """Return the rank that failed first and its exit code, by the launcher's word, else by the logs."""
    for log in logs:
        for text in _summaries(log):
            found = _ROOT.search(text)
            if found:
                code = int(found[2])
                return int(found[1]), code if code >= 0 else 128 - code
    told = _earliest_error_file(folder)
    if told is not None:
        return told, None
    for log in logs:
        for line in marked_lines(log, (b"srun: error:",), each=1, largest=_LARGEST):
            task = _TASK.search(line.text)
            if task:
                return int(task[2]), int(task[3]) if task[3] else _WORDS_OF_SRUN.get(task[4])
    causes = [hit for hit in hits if hit.rank is not None and (hit.signature is None or hit.signature.kind == "error")]
    alone = [hit for hit in causes if hit.line.log.rank is None]
    if alone:
        return alone[0].rank, None
    # A rank that failed first was the first to write no more.
    ended = sorted((_written(hit.line.log), hit.rank or 0) for hit in causes)
    return (ended[0][1], None) if ended else (None, None)


def _summaries(log: Log) -> Iterable[str]:
    """Yield what follows the heading of torchrun's report."""
    for line in marked_lines(log, (b"Root Cause (first observed failure)",), each=1, largest=_LARGEST):
        with log.path.open("rb") as stream:
            stream.seek(line.offset)
            block = stream.read(_SUMMARY_BYTES)
        yield "\n".join(_without_mark(clean(each)) for each in block.split(b"\n"))


def _earliest_error_file(folder: Path) -> int | None:
    """Return the rank of the oldest error file that torchrun's ranks wrote."""
    found = []
    for path in list((folder / RANK_LOGS).glob("**/error.json"))[:512]:
        rank = re.search(r"attempt_\d{1,4}/(\d{1,6})/", str(path))
        message = (read_record(path) or {}).get("message")
        extra = message.get("extraInfo") if isinstance(message, dict) else None
        when = extra.get("timestamp") if isinstance(extra, dict) else None
        if rank and str(when).isdigit():
            found.append((int(str(when)[:20]), int(rank[1])))
    return min(found)[1] if found else None


def _known(
    signature: Signature, caught: Mapping[str, str], rank: int | None, evidence: str, log: str, also: tuple[str, ...]
) -> Diagnosis:
    detail = signature.told(caught)
    summary = f"{_who(rank)}{signature.title}{': ' + detail if detail else ''}. {signature.cause}"
    others = tuple(title for title in also if title != signature.title)
    evidence = _without_mark(evidence)
    return Diagnosis(
        summary, signature.id, signature.title, signature.cause, signature.fix, rank, evidence, log, others
    )


def _waited(best: _Hit, hits: Sequence[_Hit], job: Job, also: tuple[str, ...]) -> Diagnosis:
    """Return the diagnosis of a time-out, in which the rank to look at is the one that did not report it."""
    assert best.signature is not None
    waited = {_told_rank(hit) for hit in hits if hit.signature is best.signature} - {None}
    missing = sorted(set(range(min(job.plan.world_size, 4096))) - waited)
    told = _known(best.signature, best.caught, best.rank, best.line.text, best.line.log.name, also)
    if not waited or not missing or len(missing) > job.plan.world_size // 2:
        return told
    names = ", ".join(map(str, missing[:8])) + (" and more" if len(missing) > 8 else "")
    who = f"rank {names} never came" if len(missing) == 1 else f"ranks {names} never came"
    summary = f"{best.signature.title}: {who}, {len(waited)} of {job.plan.world_size} ranks waited. {told.cause}"
    return Diagnosis(
        summary, told.signature, told.title, told.cause, told.fix, missing[0], told.evidence, told.log, told.also
    )


def _by_exit_code(
    job: Job, logs: Sequence[Log], rank: int | None, code: int | None, also: tuple[str, ...]
) -> Diagnosis:
    known = _by_code(job.exit_code)
    if known is not None:
        return _known(known, {}, rank, job.reason, "", also)
    ended = f"exit code {code}" if code is not None else job.reason or f"exit code {job.exit_code}"
    lines = [line for log in logs for line in tail(log, 20) if line.strip()]
    if not lines:
        return Diagnosis(f"{_who(rank)}ended with {ended}; no log was written", rank=rank, also=also)
    last = clip(lines[-1], 400)
    summary = f"{_who(rank)}ended with {ended}; nothing known stands in its log, whose last line is: {last}"
    return Diagnosis(summary, rank=rank, evidence=last, log=logs[-1].name, also=also)


def _titles(hits: Sequence[_Hit]) -> tuple[str, ...]:
    kinds = ("error", "warning", "cascade")
    return tuple(dict.fromkeys(hit.signature.title for hit in hits if hit.signature and hit.signature.kind in kinds))[
        :8
    ]


def _rank_of(line: Line) -> int | None:
    found = _MARKED.match(line.text)
    number = None if found is None else found["rank"] or found["task"]
    if number is not None:
        return int(number)
    says = _SAYS_RANK.search(line.text)
    return int(says[1]) if says else line.log.rank


def _told_rank(hit: _Hit) -> int | None:
    caught = hit.caught.get("rank")
    return int(caught) if caught is not None else hit.rank


def _without_mark(text: str) -> str:
    found = _MARKED.match(text)
    return text[found.end() :] if found else text


def _written(log: Log) -> float:
    try:
        return log.path.stat().st_mtime
    except OSError:
        return float("inf")


def _who(rank: int | None) -> str:
    return "" if rank is None else f"rank {rank}: "
