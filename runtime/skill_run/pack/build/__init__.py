"""Packed files from a data set, as Megatron-Bridge's training reads them: rows, files, names, metadata, the report.

Here belongs what turns stored samples and their packs into files. Reading the data set (`pack/samples`) and choosing
the packs (`pack/assign`) do not.
"""

from __future__ import annotations

from skill_run.pack.build.report import PackReport
from skill_run.pack.build.run import build_packs

__all__ = ["PackReport", "build_packs"]
