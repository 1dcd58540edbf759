"""skill-run: validate sequence packing and long-context configs for NVIDIA Megatron-Bridge.

The functions of the public API are loaded on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "__version__",
    "generate_recipe",
    "inspect_batch",
    "migrate_config",
    "plan_packing",
    "rehearse_config",
    "validate_config",
]

if TYPE_CHECKING:
    from skill_run.batch.inspect import inspect_batch
    from skill_run.plan.plan import plan_packing
    from skill_run.recipe.generate import generate_recipe
    from skill_run.recipe.migrate import migrate_config
    from skill_run.rehearse.run import rehearse_config
    from skill_run.rules.validate import validate_config


def __getattr__(name: str) -> Any:
    found: Any
    match name:
        case "generate_recipe":
            from skill_run.recipe.generate import generate_recipe as found
        case "inspect_batch":
            from skill_run.batch.inspect import inspect_batch as found
        case "migrate_config":
            from skill_run.recipe.migrate import migrate_config as found
        case "plan_packing":
            from skill_run.plan.plan import plan_packing as found
        case "rehearse_config":
            from skill_run.rehearse.run import rehearse_config as found
        case "validate_config":
            from skill_run.rules.validate import validate_config as found
        case _:
            raise AttributeError(f"module 'skill_run' has no attribute '{name}'")
    return found
