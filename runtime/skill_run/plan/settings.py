"""The config fields that a recommended pack size sets, in the names of the release, as overrides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from skill_run.bridge.names import exists, to_written
from skill_run.config.overrides import render_override
from skill_run.plan.assess import Candidate
from skill_run.plan.config_fields import layout_fields, recompute_fields

_SPECS: Final = "dataset.offline_packing_specs"
_EXPERT_TP: Final = "model.expert_tensor_parallel_size"
_SINGLE: Final = f"{_SPECS}.max_single_sequence_length"
_SWITCH: Final = "dataset.enable_offline_packing"


def settings_for(candidate: Candidate, release: str, base: Mapping[str, Any]) -> dict[str, Any]:
    """Return canonical fields with their values.

    release: the recorded release. base: what the recipe or config sets; what it has already is left out, and so are
    parallel sizes that equal Megatron's default where it says nothing of them.
    """
    found = {**_wanted(candidate), **_limit(candidate, release)}
    if not exists(_SWITCH, release):
        del found[_SWITCH]
    sizes = {**layout_fields(candidate.layout), **(recompute_fields(candidate.choice.run) if candidate.choice else {})}
    if candidate.layout.ep > 1:
        # Unset it is TP before 0.6.
        del sizes[_EXPERT_TP]
    return {
        name: value
        for name, value in found.items()
        if (not _same(base[name], value) if name in base else not (name in sizes and _is_default(value)))
    }


def _is_default(value: Any) -> bool:
    """Tell whether a size is Megatron's own default, which needs no override where no recipe says otherwise."""
    return value is None or value is False or (value == 1 and value is not True)


def _same(held: Any, wanted: Any) -> bool:
    return bool(held == wanted and isinstance(held, bool) == isinstance(wanted, bool)) or held == [wanted]


def _wanted(candidate: Candidate) -> dict[str, Any]:
    layout = candidate.layout
    found: dict[str, Any] = layout_fields(layout)
    if candidate.choice is not None:
        found |= recompute_fields(candidate.choice.run)
    if layout.cp > 1:
        found |= {"model.calculate_per_token_loss": True, "ddp.average_in_collective": False}
    if layout.cp > 1 or layout.sp:
        found["dataset.dataset_kwargs.pad_to_max_length"] = True
    return found | {
        "model.seq_length": candidate.pack_size,
        "dataset.seq_length": candidate.pack_size,
        _SWITCH: True,
        f"{_SPECS}.packed_sequence_size": candidate.pack_size,
        f"{_SPECS}.pad_seq_to_mult": candidate.pad_seq_to_mult,
        "train.micro_batch_size": 1,
        "train.global_batch_size": candidate.global_batch_size,
    }


def _limit(candidate: Candidate, release: str) -> dict[str, Any]:
    """Return the fields for samples that are cut below the pack size; before 0.6 only seq_length can say it."""
    if candidate.seq_length >= candidate.pack_size:
        return {}
    if exists(_SINGLE, release):
        return {_SINGLE: candidate.seq_length}
    return {"model.seq_length": candidate.seq_length, "dataset.seq_length": candidate.seq_length}


def overrides_of(settings: Mapping[str, Any], release: str) -> tuple[str, ...]:
    """Return `name=value` for each field, in the release's own names."""
    return tuple(render_override(to_written(name, release), value) for name, value in settings.items())
