"""Move a config from one Megatron-Bridge release to another, in its own form."""

from skill_run.recipe.migrate.model import Change, Manual, Migration
from skill_run.recipe.migrate.run import migrate_config

__all__ = ["Change", "Manual", "Migration", "migrate_config"]
