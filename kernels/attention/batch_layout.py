"""The layout of a step's rows in the flat dimension of tokens, as device tensors.

Rows with one token come first:

    tokens   | d | d | d |  p  p  p  p  |  p  p  |
    row      | 0 | 1 | 2 |      3       |   4    |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """The G groups of decode rows.

    Each group reads its shared prefix of keys once.

    Group g consists of the decode rows from `group_starts[g]` up to `group_starts[g + 1]`, where
    `group_starts` is (G + 1,) int32. Every decode row is in exactly one group, and a group may be
    empty. `key_ends` (G,) int32 has the number of tokens, in whole blocks, that each group reads
    together. The tables of its rows have the same ids for these blocks. `own_starts` (R,) int32 has
    the `key_ends` of each row's group, but at most the row's context length.
    """

    group_starts: Tensor
    key_ends: Tensor
    own_starts: Tensor
    max_group_rows: int  # upper bound on the rows of a group with a shared prefix


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """The layout of a step with R rows, T tokens and the block size B.

    All tensors are on the pool's device.

    `query_starts` (R + 1,) int32 has the index of each row's first token, and T at the end.
    `context_lens` (R,) int32 has the number of tokens with KV after this step, including the row's
    new tokens. `block_tables` (R, max blocks) int32 has block ids in the order of positions.
    Entries after a row's context are undefined. A row with context length 0 is padding: it has no
    keys, and its outputs are 0. `positions` (T,) int64 are the tokens' positions in their
    sequences. `slots` (T,) int64 are the places to which the tokens' KV is written: block id * B +
    offset.
    """

    query_starts: Tensor
    context_lens: Tensor
    block_tables: Tensor
    positions: Tensor
    slots: Tensor
    num_decodes: int  # number of leading rows, each of exactly one token
    max_context_len: int
    shared: SharedPrefix | None = None  # affects only speed, not results

    # (num_decodes * Hkv,) int32 zeros. A decode kernel counts here the partial results that are
    # written for an output (`decode_attention`), and leaves zeros at its end. None: each launch
    # allocates the tensor.
    arrivals: Tensor | None = None
    # (1 or 2, 2) int32: a pair for shared keys if there are any, then a pair for the rows' own
    # keys. The first number of a pair is the maximum number of keys in a split of decode attention.
    # The second is the number of splits beyond the first split of each item (`split_sizes`). None:
    # no item is split.
    splits: Tensor | None = None

    @property
    def num_rows(self) -> int:
        """The number of rows R."""
        return int(self.context_lens.shape[0])


def no_arrivals(num_decodes: int, pool: Sequence[Tensor]) -> Tensor:
    """Allocate `BatchLayout.arrivals`. All layers of `pool` use it, one after another."""
    heads = max(kv.shape[2] for kv in pool)
    return torch.zeros(num_decodes * heads, dtype=torch.int32, device=pool[0].device)
