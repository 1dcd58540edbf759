"""Let Megatron-Core's distributed optimizer resume where neither Transformer Engine nor Apex is installed.

Both faults lie in its branch for torch's own Adam (core/optimizer/distrib_optimizer.py, 0.19.2), which no GPU run takes.
"""

from __future__ import annotations

import functools
from typing import Any


def repair_resuming() -> None:
    """Make the state of a fresh optimizer before it is asked for, and give each parameter a step counter of its own.

    state_dict(), which loading a checkpoint calls first, reads the step out of a state that only the first step makes.
    load_state_dict() hands one counter to all parameters, so that each step counts once for every one of them.
    """
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
        for held in self.optimizer.state.values():
            if "step" in held:
                held["step"] = held["step"].clone()

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
