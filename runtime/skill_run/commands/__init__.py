"""Commands of `skill-run` that start workers: one module each, imported when the command is asked for."""
