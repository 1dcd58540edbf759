"""Let Megatron-Core's distributed optimizer resume where neither Transformer Engine nor Apex is installed.

Both faults lie in its branch for torch's own Adam (core/optimizer/distrib_optimizer.py, 0.19.2); no GPU run takes it.
"""

from __future__ import annotations

import functools
from typing import Any


def repair_resuming() -> None:
    """Make the state of a fresh optimizer before it is asked for, and let each parameter count on from the saved step.

    state_dict(), which loading a checkpoint calls first, reads the step out of a state that only the first step makes.
    load_state_dict() leaves that first step's count to the parameters, and keeps the saved one in the groups only.
    """
    import torch
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    tell, load = DistributedOptimizer.state_dict, DistributedOptimizer.load_state_dict

    @functools.wraps(tell)
    def state_dict(self: Any) -> Any:
        if not self.optimizer.state:
            _make_state(self)
        return tell(self)

    @functools.wraps(load)
    def load_state_dict(self: Any, state: Any) -> None:
        load(self, state)
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                held = self.optimizer.state.get(parameter, {})
                if "step" in held and "step" in group:
                    held["step"] = torch.full_like(held["step"], float(group["step"]))

    DistributedOptimizer.state_dict = state_dict
    DistributedOptimizer.load_state_dict = load_state_dict


def _make_state(optimizer: Any) -> None:
    """Step once with gradients and learning rates of zero: nothing but the state comes into being."""
    groups = optimizer.optimizer.param_groups
    rates = [group["lr"] for group in groups]
    for group in groups:
        group["lr"] = 0.0
    optimizer._init_optimizer_states_with_dummy_values()
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate
