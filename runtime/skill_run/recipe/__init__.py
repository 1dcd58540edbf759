"""Configs made and moved: from a workflow and its inputs to a config, and from one release to another."""
