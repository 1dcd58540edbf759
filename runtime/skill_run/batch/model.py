"""A batch as the checks see it: rows with their boundaries, whichever release and path it comes from.

Vocabulary. A *row* is one stream of T tokens; a *sequence* is a member of a packed row; *physical* boundaries are where
sequences lie in the row, *logical* ones count real tokens only. T tokens, S sequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Path = Literal[
    "offline_packed",
    "in_batch_packed",
    "megatron_lm_sft",
    "packed",
    "padded",
    "packed_seq_params",
    "packed_dataset",
    "ranks",
]
Generation = Literal["<=0.5", ">=0.6", "main", "megatron-lm", "unknown"]


@dataclass(frozen=True, slots=True)
class Boundaries:
    """One boundary array of one row.

    key: its name in the batch; raw: [entries] as given; trimmed: without sentinels, by argmin or the first -1;
    dtype: None when the input form has no dtypes (JSON).
    """

    key: str
    raw: Ints
    trimmed: Ints
    dtype: str | None
    argmin: int | None = None
    argmin_key: str | None = None

    @property
    def lengths(self) -> Ints:
        """Length of each sequence [S]."""
        return np.diff(self.trimmed)


@dataclass(slots=True)
class Row:
    """One row. Arrays are [T] or None.

    total: tokens of the whole row (not of one rank), None when unknown; kv: boundary arrays of the keys, beside those
    of the queries.
    """

    index: int
    total: int | None
    tokens: NDArray[Any] | None = None
    labels: NDArray[Any] | None = None
    loss_mask: NDArray[Any] | None = None
    position_ids: NDArray[Any] | None = None
    padding_mask: NDArray[Any] | None = None
    physical: Boundaries | None = None
    logical: Boundaries | None = None
    max_seqlen: int | None = None
    token_count: int | None = None
    kv: tuple[Boundaries, ...] = ()


@dataclass(slots=True)
class Batch:
    """A recognised batch.

    path and generation with `because`, a sentence; meaning: what its boundary arrays mean; rows; raw: the input
    arrays by key; keys: the names this batch uses for tokens and max_seqlen; release: the only one that
    writes such a batch, None when several do; before_split: the rows of a DP rank before they are split into
    micro-batches; per_rank: the token arrays are one context parallel rank's part; cp, tp, sp: as
    given or told by the batch, None when unknown.
    """

    path: Path
    generation: Generation
    because: str
    meaning: str
    rows: list[Row]
    raw: Mapping[str, Any]
    token_key: str = "tokens"
    max_key: str = "max_seqlen"
    release: str | None = None
    before_split: bool = False
    per_rank: bool = False
    cp: int | None = None
    tp: int | None = None
    sp: bool | None = None
    notes: list[str] = field(default_factory=list)
