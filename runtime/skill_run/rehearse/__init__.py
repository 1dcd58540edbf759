"""Rehearsal: a user's own config and data through the real Megatron-Bridge loop, at a size that a laptop runs.

`change`, `layout`, `scale`, `limits` and `models` are plain functions on plain data and run inside a worker too; the
rest is the tool's side.
"""
