"""Data to token blocks: each sample as the SFT data set of the chosen Bridge release yields it before it is packed.

Here belongs what reads a data set and tokenises it: input files and their chunks, tokenizers, prompt and chat
templates, loss masks, truncation, counts of what was lost, the processes that share the work. Which samples go into
which pack, and how packs are written, does not.
"""

from __future__ import annotations

from skill_run.pack.samples.block import Block, Progress
from skill_run.pack.samples.counts import SampleCounts, Tally
from skill_run.pack.samples.options import Preprocessing, SampleOptions
from skill_run.pack.samples.read import SampleStream, read_samples, sample_lengths

__all__ = [
    "Block",
    "Preprocessing",
    "Progress",
    "SampleCounts",
    "SampleOptions",
    "SampleStream",
    "Tally",
    "read_samples",
    "sample_lengths",
]
