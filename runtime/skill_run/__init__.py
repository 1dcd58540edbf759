"""skill-run: validate sequence packing and long-context configs for NVIDIA Megatron-Bridge.

The functions of the public API are loaded on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "inspect_batch", "rehearse_config", "validate_config"]

if TYPE_CHECKING:
    from skill_run.batch.inspect import inspect_batch
    from skill_run.rehearse.run import rehearse_config
    from skill_run.rules.validate import validate_config


def __getattr__(name: str) -> Any:
    if name == "validate_config":
        from skill_run.rules.validate import validate_config

        return validate_config
    if name == "inspect_batch":
        from skill_run.batch.inspect import inspect_batch

        return inspect_batch
    if name == "rehearse_config":
        from skill_run.rehearse.run import rehearse_config

        return rehearse_config
    raise AttributeError(f"module 'skill_run' has no attribute '{name}'")
