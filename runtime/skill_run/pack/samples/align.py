"""Stored lengths after upstream's alignment padding, and the longest stored length a release lets through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skill_run.pack.samples.options import SampleOptions, rules_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def multiple_of(options: SampleOptions) -> int:
    """Return pad_seq_to_mult as a number: 1 when nothing is padded."""
    return options.pad_seq_to_mult or 1


def grid_length(options: SampleOptions) -> int:
    """Return the longest runtime length that lies on the grid: seq_length rounded down to pad_seq_to_mult."""
    multiple = multiple_of(options)
    return options.seq_length // multiple * multiple


def template_limit(options: SampleOptions) -> int:
    """Return the stored length to which prompt-completion samples are cut before any padding.

    From 0.6 on a padded data set is given one token more, so that the runtime length may reach seq_length.
    """
    widened = rules_of(options.bridge).pads_runtime and multiple_of(options) > 1
    return options.seq_length + 1 if widened else options.seq_length


def whole_limit(options: SampleOptions) -> int:
    """Return the longest stored length of samples that upstream does not cut by field (chat and tokens).

    Without padding it is seq_length + 1 and longer ones are dropped; with padding longer ones are cut to it. Before 0.6
    upstream stops at both; here a padded sample is then cut so that its padded length lies on the grid.
    """
    if multiple_of(options) == 1:
        return options.seq_length + 1
    return grid_length(options) + (1 if rules_of(options.bridge).pads_runtime else 0)


def aligned_lengths(stored: NDArray[np.int32], options: SampleOptions) -> NDArray[np.int32]:
    """Return the stored lengths that samples have after padding to pad_seq_to_mult; int32 [N], as given.

    `stored` are lengths of a Block. Mirrors tokenize_dataset: from 0.6 on the runtime length is rounded up, before it
    the stored one (data/packing/offline.py of 0.6.2, data/datasets/packed_sequence.py of 0.3.1, 0.4.2 and 0.5.1).
    """
    import numpy as np

    multiple = multiple_of(options)
    if multiple == 1:
        return stored
    rounded = stored - 1 if rules_of(options.bridge).pads_runtime else stored
    longest = grid_length(options) if rules_of(options.bridge).pads_runtime else options.seq_length
    return (np.minimum(-(-rounded // multiple) * multiple, longest) + 1).astype(np.int32)


def padding_is_trained(options: SampleOptions, kind: str) -> bool:
    """Return what the stored loss mask of alignment padding is.

    Upstream derives the mask of a prompt template from where the answer starts, so the padding behind it has a 1; the
    reader of 0.6.2 and earlier clears it, as it clears every end-of-text token. Everywhere else it is 0.
    """
    return kind == "prompt-completion" and options.preprocessing is None
