"""Samples with random tokens, alone and packed: the same tokens, labels and loss mask in both forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch

from skill_run.worker.inside.errors import RefusedError


@dataclass(frozen=True, slots=True)
class Sample:
    """One sequence of n real tokens: tokens, labels and loss mask, each [n]."""

    tokens: Any
    labels: Any
    loss_mask: Any

    @property
    def length(self) -> int:
        """Its logical length."""
        return int(self.tokens.numel())


@dataclass(frozen=True, slots=True)
class Pack:
    """Samples side by side. fields: tokens, labels, loss_mask and position_ids [1, T]; boundaries have S + 1 places."""

    fields: Mapping[str, Any]
    logical: tuple[int, ...]
    physical: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Its physical length T."""
        return self.physical[-1]

    @property
    def longest(self) -> int:
        """The largest physical length of a sequence."""
        return max(end - start for start, end in pairwise(self.physical))


def draw_samples(packs: Sequence[Sequence[Mapping[str, int]]], vocabulary: int, seed: int) -> list[list[Sample]]:
    """Return samples of the given lengths; of each the last `trained` tokens count in the loss."""
    generator = torch.Generator().manual_seed(seed)
    return [[_draw(sequence, vocabulary, generator) for sequence in pack] for pack in packs]


def _draw(sequence: Mapping[str, int], vocabulary: int, generator: Any) -> Sample:
    length, trained = int(sequence["length"]), int(sequence["trained"])
    if length < 1 or not 0 <= trained <= length:
        raise RefusedError(f"no sequence has {length} tokens of which {trained} are trained")
    ids = torch.randint(0, vocabulary, (length + 1,), generator=generator)
    mask = torch.zeros(length)
    mask[length - trained :] = 1.0
    return Sample(ids[:-1], ids[1:], mask)


def enough_samples(samples: list[list[Sample]], fewest: int) -> list[list[Sample]]:
    """Return at least `fewest` packs, and a multiple of it, by taking the given ones again."""
    rounds = -(-len(samples) // fewest) * fewest
    return [samples[number % len(samples)] for number in range(rounds)]


def alone(sample: Sample) -> dict[str, Any]:
    """Return the fields of an unpacked microbatch, each [1, n]."""
    return {
        "tokens": sample.tokens[None],
        "labels": sample.labels[None],
        "loss_mask": sample.loss_mask[None],
        "position_ids": torch.arange(sample.length)[None],
    }


def pack_samples(samples: Sequence[Sample], size: int, multiple: int) -> Pack:
    """Return a pack of exactly `size` tokens, each sample padded to a multiple of `multiple`.

    What is left is one sequence more that counts nowhere in the loss: pipeline stages need packs of one length. Raises
    RefusedError when the samples do not fit.
    """
    lengths = [sample.length for sample in samples]
    physical = [-(-length // multiple) * multiple for length in lengths]
    left = size - sum(physical)
    if left < 0:
        raise RefusedError(f"sequences of {sum(physical)} padded tokens do not fit into a pack of {size}")
    parts = {
        "tokens": [sample.tokens for sample in samples],
        "labels": [sample.labels for sample in samples],
        "loss_mask": [sample.loss_mask for sample in samples],
    }
    if left:
        lengths.append(left)
        physical.append(left)
        parts = {name: [*values, values[0].new_zeros(left)] for name, values in parts.items()}
    fields = {name: _joined(values, physical) for name, values in parts.items()}
    fields["position_ids"] = torch.cat([torch.arange(length) for length in physical])[None]
    return Pack(fields, (0, *accumulate(lengths)), (0, *accumulate(physical)))


def _joined(parts: Sequence[Any], physical: Sequence[int]) -> Any:
    padded = [
        torch.nn.functional.pad(part, (0, length - part.numel())) for part, length in zip(parts, physical, strict=True)
    ]
    return torch.cat(padded)[None]
