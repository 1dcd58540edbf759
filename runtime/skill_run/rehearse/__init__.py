"""Rehearsal: a user's own config and data through the real Megatron-Bridge loop, at a size that a laptop runs.

`change`, `layout` and `scale` are plain functions on plain data and run inside a worker too; the rest is the tool's
side.
"""
