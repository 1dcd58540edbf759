"""skill-run: validate sequence packing and long-context configs for NVIDIA Megatron-Bridge.

The functions of the public API are loaded on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

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

# Name -> module that has it.
_LATER: Final = {
    "generate_recipe": "skill_run.recipe.generate",
    "inspect_batch": "skill_run.batch.inspect",
    "migrate_config": "skill_run.recipe.migrate",
    "plan_packing": "skill_run.plan.plan",
    "rehearse_config": "skill_run.rehearse.run",
    "validate_config": "skill_run.rules.validate",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'skill_run' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_LATER[name]), name)
