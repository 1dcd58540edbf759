"""`prove_parity`: packed training with context parallelism against unpacked training, on the real Megatron-Core.

Both compute loss, gradients and a few optimizer steps from the same weights and samples. Each fault that the comparison
is there to find is put in on purpose as well, so that a clean result means something.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from skill_run.config.config import Config
from skill_run.errors import InputError
from skill_run.verify.configured import Loss, layout_of, loss_of, multiple_of
from skill_run.verify.layouts import DEFAULT_COMM_TYPES, Layout, check, fitted
from skill_run.verify.lengths import Packs, default_packs, packs_of
from skill_run.verify.shape import Shape, scaled_shape, smallest_shape
from skill_run.worker.environments import find_worker
from skill_run.worker.session import Event, run_task

CONTROLS: Final = (
    "contiguous-split",
    "ignored-boundaries",
    "loss-scaling",
    "pad-multiple-1",
    "logical-boundaries",
)
DTYPES: Final = ("float64", "float32", "bfloat16")
DEVICES: Final = ("cpu", "cuda")
STEPS: Final = 2
LARGEST_STEPS: Final = 50
LARGEST_SEED: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class ParityReport:
    """What one comparison found. `result` is the worker's answer; report/parity.schema.json gives its form."""

    worker: str
    result: Mapping[str, Any]
    shape: Shape
    packs: Packs
    changes: tuple[str, ...] = ()

    @property
    def layouts(self) -> list[Mapping[str, Any]]:
        """Every layout with its errors and its verdict."""
        return list(self.result.get("layouts", ()))

    @property
    def controls(self) -> list[Mapping[str, Any]]:
        """Every fault that was put in, with what the comparison said of it."""
        return list(self.result.get("controls", ()))

    @property
    def passed(self) -> bool:
        """Every layout agrees with the reference, and every control was caught with the right diagnosis."""
        agreed = bool(self.layouts) and all(layout["passed"] for layout in self.layouts)
        caught = all(control["caught"] and control["right_diagnosis"] for control in self.controls)
        masked = self.result.get("all_masked", {})
        return agreed and caught and masked.get("finite", True) is True and masked.get("passed", True) is True

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready data."""
        return {
            "passed": self.passed,
            "worker": self.worker,
            "model": self.shape.model,
            "changes": [*self.changes, *self.shape.changes],
            "assumed": self.shape.assumed,
            "packs": {
                "sequences": [[sequence["length"] for sequence in pack] for pack in self.packs.packs],
                "pack_size": self.packs.pack_size,
                "pad_seq_to_mult": self.packs.pad_seq_to_mult,
                "notes": list(self.packs.notes),
            },
            **self.result,
        }


@dataclass(frozen=True, slots=True)
class ParityOptions:
    """What to compare. Sizes that are None come from the config, else they are 1 (CP: 2).

    comm_types: cp_comm_type values to try; dtype: one of DTYPES, by default float64, and on a GPU bfloat16, which alone
    its attention kernels compute; steps: optimizer steps; worker: name of a worker; device: cpu or cuda.
    """

    config: str | Path | None = None
    recipe: str | None = None
    overrides: Sequence[str] = ()
    data: str | Path | None = None
    cp: int | None = None
    tp: int | None = None
    pp: int | None = None
    vpp: int | None = None
    ep: int | None = None
    dp: int | None = None
    sp: bool | None = None
    comm_types: Sequence[str] = ()
    dtype: str | None = None
    steps: int = STEPS
    seed: int = 0
    controls: Sequence[str] = CONTROLS
    model: str | None = None
    worker: str | None = None
    device: str = "cpu"

    @property
    def precision(self) -> str:
        """The dtype that is compared in."""
        return self.dtype or ("bfloat16" if self.device == "cuda" else "float64")


@dataclass(slots=True)
class _Plan:
    """What the worker is asked."""

    layouts: list[Layout]
    shape: Shape
    packs: Packs
    changes: list[str] = field(default_factory=list)
    loss: Loss = "per-token"
    notes: list[str] = field(default_factory=list)


def prove_parity(
    options: ParityOptions | None = None, *, on_event: Callable[[Event], None] | None = None
) -> ParityReport:
    """Compare packed with unpacked training in a worker and return the report.

    on_event: called with the worker's progress events. Raises InputError for sizes, data or a config that cannot be
    compared, MissingError without a worker, WorkerFailure when the worker dies or hangs.
    """
    options = options or ParityOptions()
    plan = _plan(options)
    worker = find_worker(options.worker)
    result = run_task(worker, "parity", _request(plan, options), on_event=on_event)
    result["notes"] = [*result.get("notes", ()), *plan.notes]
    return ParityReport(worker.name, result, plan.shape, plan.packs, tuple(plan.changes))


def requested(options: ParityOptions) -> dict[str, Any]:
    """Return what the worker would be asked, as JSON-ready data; raises InputError as prove_parity does."""
    return _request(_plan(options), options)


def _plan(options: ParityOptions) -> _Plan:
    if options.precision not in DTYPES:
        raise InputError(f"--dtype must be one of {', '.join(DTYPES)}, not {options.dtype!r}")
    if options.device not in DEVICES:
        raise InputError(f"--device must be one of {', '.join(DEVICES)}, not {options.device!r}")
    if not 0 <= options.steps <= LARGEST_STEPS:
        raise InputError(f"--steps must be from 0 to {LARGEST_STEPS}, not {options.steps}")
    if not 0 <= options.seed <= LARGEST_SEED:
        raise InputError(f"--seed must be from 0 to {LARGEST_SEED}, not {options.seed}")
    config = None
    layout = own = Layout(cp=2)
    changes: list[str] = []
    notes: list[str] = []
    if options.config is not None or options.recipe is not None:
        config, notes = _config(options)
        own = layout_of(config)
        layout, changes = fitted(own)
    elif options.model is not None:
        raise InputError("--model completes the shape of a config; give that with --config or --recipe")
    layout = _asked(layout, options)
    check(layout)
    comm_types = options.comm_types or _comm_types(layout, config is not None)
    layouts = [replace(layout, cp_comm_type=comm) for comm in comm_types] if layout.cp > 1 else [layout]
    for each in layouts:
        check(each)
    # Heads must be divisible for every way of travelling that is tried.
    hardest = max(layouts, key=lambda each: "a2a" in each.cp_comm_type)
    shape = smallest_shape(hardest) if config is None else scaled_shape(config, hardest)
    plan = _Plan(layouts, shape, default_packs(layout.pad_multiple), changes, notes=notes)
    _put_data(plan, config, options, _asked(own, options))
    return plan


def _put_data(plan: _Plan, config: Config | None, options: ParityOptions, own: Layout) -> None:
    """Set packs and loss as config and data have them. own: the layout before it was made smaller."""
    small = plan.layouts[0]
    multiple = small.pad_multiple
    if config is not None:
        multiple = multiple_of(config, own, small)
        plan.loss, changes = loss_of(config, own)
        plan.changes += changes
    if options.data is not None:
        plan.packs = packs_of(options.data, multiple, grid=(own.pad_multiple, small.pad_multiple))
    elif config is not None:
        plan.packs = default_packs(multiple)


def _config(options: ParityOptions) -> tuple[Config, list[str]]:
    """Return the resolved config, and a note on what the rules find in it that is not compared."""
    from skill_run.rules.validate import build_config, bundle_rules, judge_sources, read_sources

    source = Path(options.config) if options.config is not None else None
    if source is not None and not source.is_file():
        raise InputError(f"there is no config file {source}")
    sources = read_sources(source, recipe=options.recipe, overrides=options.overrides)
    config = build_config(sources, recipe=options.recipe, model=options.model)
    if options.recipe is not None and config.base == "unknown":
        unknown = (remark.message for remark in config.remarks if remark.rule == "unknown-recipe")
        raise InputError(next(unknown, config.base_text).rstrip("."))
    judged = judge_sources(sources, bundle_rules(), recipe=options.recipe, model=options.model)
    found = list(dict.fromkeys(finding.rule for finding in judged.at_least("corruption")))
    told = f"the rules find faults in this config ({', '.join(found)}); skill-run validate tells of them"
    return config, [told] if found else []


def _asked(layout: Layout, options: ParityOptions) -> Layout:
    """Return the layout with what the options say instead."""
    asked = {name: getattr(options, name) for name in ("cp", "tp", "pp", "vpp", "ep", "dp", "sp")}
    return replace(layout, **{name: value for name, value in asked.items() if value is not None})


def _comm_types(layout: Layout, configured: bool) -> tuple[str, ...]:
    """Return the ways of travelling to try: gathering and the ring, and the config's own."""
    own = (layout.cp_comm_type,) if configured else ()
    return tuple(dict.fromkeys((*own, *DEFAULT_COMM_TYPES)))


def _request(plan: _Plan, options: ParityOptions) -> dict[str, Any]:
    return {
        "model": plan.shape.model,
        "packs": plan.packs.packs,
        "pack_size": plan.packs.pack_size,
        "pad_seq_to_mult": plan.packs.pad_seq_to_mult,
        "seed": options.seed,
        "dtype": options.precision,
        "steps": options.steps,
        "layouts": [layout.to_dict() for layout in plan.layouts],
        "controls": list(options.controls),
        "loss": plan.loss,
        "leak": True,
        "device": options.device,
    }
