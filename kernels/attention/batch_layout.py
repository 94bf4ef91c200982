"""The rows of a step in the flat token dimension, as device tensors.

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

    Group g has the decode rows from group_starts[g] up to group_starts[g + 1], in `group_starts` (G
    + 1,) int32. Every decode row is in exactly one group, and a group may be empty. `key_ends` (G,)
    int32 are the numbers of tokens, in whole blocks, that the groups read together. The rows'
    tables have equal ids for these blocks. `own_starts` (R,) int32 are the `key_ends` of each row's
    group, but no more than the row's context.
    """

    group_starts: Tensor
    key_ends: Tensor
    own_starts: Tensor
    max_group_rows: int  # bound on the rows of a group with a shared prefix


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """The layout of a step: rows R, tokens T, block size B.

    All tensors are on the pool's device.

    `query_starts` (R + 1,) int32 are where each row's tokens start, and at last T. `context_lens`
    (R,) int32 are the tokens with KV after this step, the row's new tokens included. `block_tables`
    (R, max blocks) int32 are block ids by position. Entries after a row's context are undefined. A
    row whose context is 0 is padding, with no keys and outputs of 0. `positions` (T,) int64 are the
    tokens' positions in their sequences. `slots` (T,) int64, block id * B + offset, are where the
    tokens' KV is written.
    """

    query_starts: Tensor
    context_lens: Tensor
    block_tables: Tensor
    positions: Tensor
    slots: Tensor
    num_decodes: int  # leading rows with exactly one token
    max_context_len: int
    shared: SharedPrefix | None = None  # only for speed: results do not depend on it

    # (num_decodes * Hkv,) int32 zeros, in which a decode kernel counts the partials written for an
    # output (`decode_attention`). They are zeros again after each launch. None: each launch
    # allocates them.
    arrivals: Tensor | None = None
    # (1 or 2, 2) int32, for shared keys if there are any, then for the rows' own keys. The first
    # number is the maximum number of keys in a split of decode attention. The second is the number
    # of splits in addition to one for each item (`split_sizes`). None: no item is split.
    splits: Tensor | None = None

    @property
    def num_rows(self) -> int:
        """The number of rows R."""
        return int(self.context_lens.shape[0])


def no_arrivals(num_decodes: int, pool: Sequence[Tensor]) -> Tensor:
    """Allocate `BatchLayout.arrivals` for all layers of `pool`, which use it in turn."""
    heads = max(kv.shape[2] for kv in pool)
    return torch.zeros(num_decodes * heads, dtype=torch.int32, device=pool[0].device)
