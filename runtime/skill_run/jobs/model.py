"""What a job is: its plan, its state, and the moves between states, as plain data that goes to JSON and back."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from skill_run.errors import InputError

# A job's id is the name of its folder, so it holds nothing that a path or a shell could read in another way.
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class State(StrEnum):
    """Where a job stands. `lost` means that the engine cannot tell; every other state after `previewed` is its word."""

    PREVIEWED = "previewed"
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"


ENDED: Final = frozenset({State.SUCCEEDED, State.FAILED, State.STOPPED})
# The engine is asked about these at every read.
UNSETTLED: Final = frozenset({State.QUEUED, State.RUNNING, State.LOST})

# A running job goes back to queued when the cluster requeues it. A lost one goes wherever its engine finds it.
MOVES: Final[Mapping[State, frozenset[State]]] = {
    State.PREVIEWED: frozenset({State.QUEUED}),
    State.QUEUED: ENDED | {State.RUNNING, State.LOST},
    State.RUNNING: ENDED | {State.QUEUED, State.LOST},
    State.LOST: ENDED | {State.QUEUED, State.RUNNING},
    State.SUCCEEDED: frozenset(),
    State.FAILED: frozenset(),
    State.STOPPED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable of a job, with the reason why it is set."""

    value: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Allowance:
    """A rule whose findings somebody accepted: who and when (ISO time)."""

    rule: str
    by: str
    at: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a start does, fixed before it: the same plan gives the same job.

    command: argument list, run in `folder`; files: relative name -> text, written into `folder` first; environment:
    variables laid over those of the process that starts the job; outputs: what -> path; resumes_from: checkpoint that
    training goes on from; gpu_hours: estimated cost; extra: options of the engine.
    """

    id: str
    name: str
    engine: str
    command: tuple[str, ...]
    folder: str
    files: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, Variable] = field(default_factory=dict)
    world_size: int = 1
    nodes: int = 1
    ranks_per_node: int = 1
    bridge: str | None = None
    recipe: str | None = None
    config_digest: str | None = None
    outputs: Mapping[str, str] = field(default_factory=dict)
    resumes_from: str | None = None
    gpu_hours: float | None = None
    allowed: tuple[Allowance, ...] = ()
    created: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse an id that is no plain name, and a command that is empty or that no system can run."""
        check_id(self.id)
        if not self.command:
            raise InputError("the plan has no command")
        texts = (*self.command, *self.environment, *(each.value for each in self.environment.values()))
        if any("\0" in text for text in texts):
            raise InputError("a command and its environment hold no NUL character")
        if any("=" in name or not name for name in self.environment):
            raise InputError("the name of an environment variable is empty or holds '='")

    def to_dict(self, *, files: bool = True) -> dict[str, Any]:
        """Return the plan as JSON-ready data, without the text of its files when `files` is false."""
        told = {each.name: getattr(self, each.name) for each in fields(self)}
        told["command"] = list(self.command)
        told["files"] = dict(self.files) if files else dict.fromkeys(self.files, "")
        told["environment"] = {
            name: {"value": each.value, "reason": each.reason} for name, each in self.environment.items()
        }
        told["outputs"], told["extra"] = dict(self.outputs), dict(self.extra)
        told["allowed"] = [{"rule": each.rule, "by": each.by, "at": each.at} for each in self.allowed]
        return told

    @classmethod
    def from_dict(cls, told: Any) -> Plan:
        """Return the plan that JSON data holds. Raises InputError when the data is no plan."""
        try:
            known = {each.name: told[each.name] for each in fields(cls) if each.name in told}
            if isinstance(known["command"], str):
                raise TypeError("the command is no list of arguments")
            known["command"] = tuple(_text(word) for word in known["command"])
            for name in ("files", "outputs"):
                known[name] = {_text(key): _text(value) for key, value in known.get(name, {}).items()}
            known["environment"] = {
                _text(name): Variable(_text(each["value"]), _text(each.get("reason", "")))
                for name, each in known.get("environment", {}).items()
            }
            known["allowed"] = tuple(
                Allowance(_text(each["rule"]), _text(each["by"]), _text(each["at"]))
                for each in known.get("allowed", ())
            )
            for name in ("id", "name", "engine", "folder"):
                _text(known[name])
            known["extra"] = dict(known.get("extra", {}))
            return cls(**known)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"this is no plan of a job ({type(error).__name__}: {error})") from error

    def digest(self) -> str:
        """Return the SHA-256 of the whole plan: a confirmation of one plan is none of another."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("ascii")).hexdigest()

    def without_files(self) -> Plan:
        """Return the plan with the names of its files only, for lists."""
        return replace(self, files=dict.fromkeys(self.files, ""))


@dataclass(frozen=True, slots=True)
class Seen:
    """What an engine says about a job now.

    state: None when the engine cannot be asked, which leaves the job as it is and `note` to be shown.
    """

    state: State | None
    exit_code: int | None = None
    reason: str = ""
    when: str | None = None
    started: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """A job as the store knows it. Times are ISO, in UTC; `plan` holds the names of its files, not their text.

    engine_id: what the engine needs to find it again, None before the start; version: counts changes of the row;
    note: why its state may be old; not stored.
    """

    plan: Plan
    state: State
    plan_digest: str
    created: str
    engine_id: Mapping[str, Any] | None = None
    started: str | None = None
    ended: str | None = None
    exit_code: int | None = None
    reason: str = ""
    stop_asked: str | None = None
    metrics: Mapping[str, Any] | None = None
    version: int = 0
    note: str = ""

    @property
    def id(self) -> str:
        """The id, which is the plan's."""
        return self.plan.id

    @property
    def name(self) -> str:
        """The name that a person gave it."""
        return self.plan.name

    def to_dict(self) -> dict[str, Any]:
        """Return the job as JSON-ready data."""
        told = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in ("plan", "version")}
        told["state"] = self.state.value
        told["engine_id"] = None if self.engine_id is None else dict(self.engine_id)
        told["metrics"] = None if self.metrics is None else dict(self.metrics)
        return {"id": self.id, "name": self.name, "engine": self.plan.engine, "folder": self.plan.folder, **told}

    def body(self) -> str:
        """Return what the store keeps of it, as ASCII JSON: any text of a user survives, lone surrogates too."""
        told = self.to_dict()
        for name in ("id", "name", "engine", "folder", "note"):
            del told[name]
        return json.dumps({**told, "plan": self.plan.to_dict(files=False)})

    @classmethod
    def from_body(cls, text: str, version: int) -> Job:
        """Return the job that a row of the store holds. Raises InputError when the text is no such row."""
        try:
            told = json.loads(text)
            told["plan"] = Plan.from_dict(told["plan"])
            told["state"] = State(told["state"])
            return cls(**told, version=version)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"a row of the job store cannot be read ({error})") from error


def may_move(before: State, after: State) -> bool:
    """Tell whether a job may go from one state to another; to stay is no move, and allowed."""
    return before == after or after in MOVES[before]


def check_id(text: str) -> str:
    """Return an id as it is. Raises InputError when it is not letters, digits, `_` and `-`."""
    if not _ID.fullmatch(text):
        raise InputError("a job's id is up to 64 letters, digits, '_' and '-'")
    return text


def new_id() -> str:
    """Return an id that is new, and sorts by time."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def now() -> str:
    """Return this moment as ISO time in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value
