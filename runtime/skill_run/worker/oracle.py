"""Ask the real validate() of a worker's Megatron-Bridge about the config at hand, and hold our verdict against it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from skill_run.config.config import Config
from skill_run.config.model import Assignment, Plain, Source, State, Unknown
from skill_run.config.tree import parse_tree, to_plain
from skill_run.report.finding import ValidationReport
from skill_run.worker.environments import Worker, find_worker
from skill_run.worker.session import Event, run_task

Outcome = Literal["passes", "raises", "cannot-build", "not-asked"]

# What is filled in, where neither the input nor its recipe says it, so that there is a whole config to ask about.
_SHAPE: Final[dict[str, Plain]] = {
    "model.hidden_size": 8192,
    "model.num_attention_heads": 64,
    "model.seq_length": 4096,
}
_MODEL_CLASS: Final = "GPTModelProvider"
_DATASET_CLASS: Final = "GPTSFTDatasetConfig"
_LONGEST: Final = 400


@dataclass(frozen=True, slots=True)
class UpstreamAnswer:
    """What the real validate() said.

    agrees: whether our verdict is the same, None where one of the two is no verdict; assumed: `field = value` for what
    was filled in; changed: field -> value before and after, for what validate() itself set; note: one sentence when it
    was not asked.
    """

    bridge: str
    outcome: Outcome
    ours: str
    phase: str = ""
    error: str = ""
    message: str = ""
    where: str = ""
    changed: Mapping[str, Any] | None = None
    warnings: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    note: str = ""

    @property
    def agrees(self) -> bool | None:
        """Whether the two verdicts are the same; None when one side has none."""
        if self.outcome not in ("passes", "raises") or self.ours == "unknown":
            return None
        return self.outcome == self.ours

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as JSON-ready data; the keys are a contract."""
        return {
            "bridge": self.bridge,
            "outcome": self.outcome,
            "agrees": self.agrees,
            "phase": self.phase or None,
            "error": self.error or None,
            "message": self.message or None,
            "where": self.where or None,
            "changed": dict(self.changed or {}),
            "warnings": list(self.warnings),
            "assumed": list(self.assumed),
            "dropped": list(self.dropped),
            "note": self.note or None,
        }


def ask_upstream(
    sources: Sequence[Source],
    config: Config,
    report: ValidationReport,
    *,
    mapping: Mapping[str, Any] | None = None,
    worker: Worker | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> UpstreamAnswer:
    """Run the real validate() on what `sources` and `config` describe.

    sources, config: the read input and what it resolves to; mapping: the input itself when it came as a mapping.
    Raises MissingError without a worker that has Megatron-Bridge, WorkerFailure when it does not finish.
    """
    worker = worker or find_worker(bridge=True)
    bridge = worker.bridge or ""
    ours = report.upstream_validate
    if config.release.version != bridge:
        note = (
            f"The worker has Megatron-Bridge {bridge}, and this config is for {config.choice.version}, so the real "
            "validate() was not asked."
        )
        return UpstreamAnswer(bridge, "not-asked", ours, note=note)
    raw = _as_given(sources, mapping)
    if raw is None and (config.base == "unknown" or config.unknown_prefixes):
        note = f"The config cannot be built without running its code: {config.base_text}."
        return UpstreamAnswer(bridge, "not-asked", ours, note=note)
    assumed: dict[str, Plain] = {} if raw is not None else _assumed(config)
    world_size = config.world_size or _smallest_world(config)
    case = {
        "config": raw if raw is not None else _as_resolved(config, assumed),
        "infer": raw is None,
        "world_size": world_size,
        "env": config.env or {},
        "gpu": config.gpu,
        "te": config.te,
    }
    told = run_task(worker, "oracle", {"cases": [case]}, on_event=on_event)["cases"][0]
    if config.world_size is None:
        assumed["world_size"] = world_size
    return UpstreamAnswer(
        bridge,
        told["outcome"],
        ours,
        phase=told.get("phase", ""),
        error=told.get("error", ""),
        message=_first_sentences(told.get("message", "")),
        where=told.get("where", ""),
        changed=told.get("changed"),
        warnings=tuple(told.get("warnings", ())),
        assumed=tuple(f"{name} = {value}" for name, value in assumed.items()),
        dropped=tuple(told.get("dropped", ())),
    )


def _first_sentences(text: str) -> str:
    flowed = " ".join(text.split())
    return flowed if len(flowed) <= _LONGEST else flowed[: _LONGEST - 3] + "..."


def _as_given(sources: Sequence[Source], mapping: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a dump of a whole ConfigContainer as it stands, with what is laid over it; None for other input."""
    first = sources[0]
    if first.form != "container":
        return None
    data = to_plain(parse_tree(first.text, first.name)) if first.text else mapping
    if not isinstance(data, Mapping):
        return None
    tree = dict(data)
    for source in sources[1:]:
        for assignment in source.assignments:
            _lay_over(tree, assignment)
    return tree


def _lay_over(tree: dict[str, Any], assignment: Assignment) -> None:
    if isinstance(assignment.value, Unknown) or assignment.operation == "delete":
        return
    _put(tree, assignment.path, assignment.value)


def _put(tree: dict[str, Any], path: str, value: Any) -> None:
    node = tree
    *parents, leaf = path.split(".")
    for parent in parents:
        below = node.get(parent)
        node[parent] = dict(below) if isinstance(below, Mapping) else {}
        node = node[parent]
    node[leaf] = value


def _as_resolved(config: Config, assumed: Mapping[str, Plain]) -> dict[str, Any]:
    """Return every field that is known as nested sections in the names of the release."""
    tree: dict[str, Any] = {
        "dataset": {"type": config.dataset_type or _DATASET_CLASS},
        "model": {"type": config.model_type or _MODEL_CLASS},
    }
    known = sorted(name for name, value in config.values.items() if value.state is State.SET)
    for canonical in known:
        section = canonical.partition(".")[0]
        if section not in config.release.sections or canonical in ("dataset.type", "model.type"):
            continue
        held = config.values[canonical]
        value = held.value
        if canonical == "model.cp_comm_type" and isinstance(value, list) and len(value) == 1 and not held.as_list:
            value = value[0]
        _put(tree, config.written(canonical), value)
    for canonical, value in assumed.items():
        _put(tree, config.written(canonical), value)
    return tree


def _assumed(config: Config) -> dict[str, Plain]:
    """Return fields that a whole config needs and that nobody has set, with values that no check minds."""
    pipeline = _number(config, "model.pipeline_model_parallel_size")
    virtual = _number(config, "model.virtual_pipeline_model_parallel_size")
    found: dict[str, Plain] = {"model.num_layers": 4 * pipeline * virtual, **_SHAPE}
    length = _known(config, "model.seq_length") or _known(config, "dataset.seq_length") or _SHAPE["model.seq_length"]
    found |= {"model.seq_length": length, "dataset.seq_length": length}
    in_batch = _known(config, "dataset.enable_in_batch_packing") is True
    micro = _number(config, "train.micro_batch_size", 2 if in_batch else 1)
    found |= {"train.micro_batch_size": micro, "train.global_batch_size": micro * _data_parallel_size(config)}
    if not any(_known(config, f"train.{name}") for name in ("train_iters", "train_samples", "num_epochs")):
        found["train.train_iters"] = 100
    if (config.dataset_type or _DATASET_CLASS) == _DATASET_CLASS and not config.is_given("dataset.hf_dataset"):
        found["dataset.dataset_root"] = "/data"
    if config.is_given("peft"):
        found["checkpoint.pretrained_checkpoint"] = "/checkpoints/base"
    return {name: value for name, value in found.items() if _known(config, name) is None}


def _known(config: Config, canonical: str) -> Plain:
    held = config.get(canonical)
    return None if held.state is State.UNKNOWN else held.value


def _number(config: Config, canonical: str, otherwise: int = 1) -> int:
    value = _known(config, canonical)
    return value if isinstance(value, int) and value > 0 else otherwise


def _smallest_world(config: Config) -> int:
    fields = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
    return math.prod(_number(config, f"model.{field}") for field in fields)


def _data_parallel_size(config: Config) -> int:
    return max(1, (config.world_size or 1) // _smallest_world(config))
