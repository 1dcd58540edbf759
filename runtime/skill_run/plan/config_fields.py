"""Config fields, by canonical name, that say a layout and a level of recompute."""

from __future__ import annotations

from typing import Any

from skill_run.plan.layout import Layout, Run


def layout_fields(layout: Layout) -> dict[str, Any]:
    """Return the fields of a layout; CP's own only with CP > 1, a shorter last stage only where there is one."""
    fields: dict[str, Any] = {
        "model.tensor_model_parallel_size": layout.tp,
        "model.pipeline_model_parallel_size": layout.pp,
        "model.virtual_pipeline_model_parallel_size": layout.vpp,
        "model.context_parallel_size": layout.cp,
        "model.expert_model_parallel_size": layout.ep,
        "model.expert_tensor_parallel_size": layout.etp,
        "model.sequence_parallel": layout.sp,
    }
    if layout.cp > 1:
        fields["model.cp_comm_type"] = layout.cp_comm_type
        if layout.hierarchical_sizes:
            fields["model.hierarchical_context_parallel_sizes"] = list(layout.hierarchical_sizes)
    if layout.last_stage_layers is not None:
        fields["model.num_layers_in_last_pipeline_stage"] = layout.last_stage_layers
    return fields


def recompute_fields(run: Run) -> dict[str, Any]:
    """Return the fields of a run's recompute, with null for those that its level excludes."""
    full = run.recompute == "full"
    return {
        "model.recompute_granularity": run.recompute,
        "model.recompute_method": run.recompute_method if full else None,
        "model.recompute_num_layers": run.recompute_num_layers if full else None,
        "model.recompute_modules": list(run.recompute_modules) if run.recompute == "selective" else None,
    }
