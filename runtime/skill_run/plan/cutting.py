"""What a release makes of samples before it packs them: cut, dropped, aligned, or refused.

Mirrors `tokenize_dataset` and `create_hist`: data/datasets/packed_sequence.py (0.3.1 to 0.5.1), data/packing/offline.py
and data/packing/algorithms.py (0.6.2, main).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from skill_run.bridge.release import matches
from skill_run.plan.lengths import Ints, Lengths, total


@dataclass(frozen=True, slots=True)
class Cut:
    """Samples as they go into packs, in tokens at run time, and what became of the others.

    physical, logical [K]: length with and without alignment padding; counts [K]: samples. stops: why the release itself
    would stop on this data, None when it packs it. empty: samples of one stored token, which leave nothing to train.
    """

    physical: Ints
    logical: Ints
    counts: Ints
    truncated_samples: int
    truncated_tokens: int
    dropped_samples: int
    dropped_tokens: int
    empty: int
    stops: str | None

    @property
    def samples(self) -> int:
        """Return the number of samples that are packed."""
        return int(self.counts.sum())

    @property
    def tokens(self) -> int:
        """Return their tokens without padding."""
        return total(self.logical, self.counts)

    @property
    def alignment(self) -> int:
        """Return the tokens of alignment padding."""
        return total(self.physical, self.counts) - self.tokens


def cut_for(lengths: Lengths, *, bridge: str, pack_size: int, seq_length: int, pad_seq_to_mult: int) -> Cut:
    """Return what goes into packs.

    seq_length: upstream's limit for one sample. Chats are not cut while they are tokenised; up to 0.5 one that is
    longer stops the packing, 0.6 drops it without alignment and cuts it with. Samples that come as tokens are not
    cut either; upstream reads none, so that what skill-run pack makes of them holds (pack/samples/align.py).
    """
    current = matches(">=0.6.dev0", bridge)
    stored = lengths.values
    whole = lengths.chat or lengths.kind == "tokens"
    physical, logical, dropped = (_current if current else _earlier)(stored, whole, seq_length, pad_seq_to_mult)
    stops = _stops(lengths, current, pack_size, seq_length, pad_seq_to_mult, physical[~dropped])
    # What is too long for a pack would stop upstream; it is counted as dropped so that the rest can be planned.
    over = ~dropped & (physical > pack_size)
    dropped |= over
    empty = ~dropped & (logical < 1)
    kept = ~dropped & ~empty
    truncated = kept & (logical < stored - 1)
    return Cut(
        physical[kept],
        logical[kept],
        lengths.counts[kept],
        int(lengths.counts[truncated].sum()),
        total((stored - 1 - logical)[truncated], lengths.counts[truncated]),
        int(lengths.counts[dropped].sum()),
        total((stored - 1)[dropped], lengths.counts[dropped]),
        int(lengths.counts[empty].sum()),
        stops,
    )


def _current(stored: Ints, whole: bool, limit: int, multiple: int) -> tuple[Ints, Ints, Any]:
    nothing = np.zeros(stored.size, dtype=bool)
    if multiple > 1:
        cap = limit // multiple * multiple
        physical = np.minimum(cap, _aligned(stored - 1, multiple))
        return physical, np.minimum(stored - 1, physical), nothing
    if whole:
        return stored - 1, stored - 1, stored - 1 > limit
    runtime = np.minimum(stored, limit) - 1
    return runtime, runtime, nothing


def _earlier(stored: Ints, whole: bool, limit: int, multiple: int) -> tuple[Ints, Ints, Any]:
    nothing = np.zeros(stored.size, dtype=bool)
    if whole and multiple == 1:
        return stored - 1, stored - 1, stored - 1 > limit
    logical = np.minimum(stored, limit // multiple * multiple if whole else limit)
    if multiple > 1:
        return np.minimum(limit, _aligned(logical, multiple)), logical - 1, nothing
    return logical - 1, logical - 1, nothing


def _aligned(lengths: Ints, multiple: int) -> Ints:
    return -(-lengths // multiple) * multiple


def _stops(
    lengths: Lengths, current: bool, pack_size: int, seq_length: int, multiple: int, physical: Ints
) -> str | None:
    if current and multiple > seq_length:
        return f"seq_length {seq_length} is below the alignment of {multiple} tokens, which stops the packing"
    if lengths.chat and lengths.kind != "tokens" and not current:
        if multiple > 1:
            return "chat data with pad_seq_to_mult above 1 stop the packing with a TypeError up to Bridge 0.5"
        if lengths.longest - 1 > seq_length:
            return f"a chat longer than seq_length {seq_length} stops the packing with an IndexError up to Bridge 0.5"
    if physical.size and int(physical.max()) > pack_size:
        return f"samples longer than the pack size {pack_size} stop the packing with a KeyError"
    return None
