"""How the rows of one step lie in the flat token dimension, as device tensors.

Knows: shapes. Does not know: sequences, leases or where the numbers come from.

    tokens   | d | d | d |  p  p  p  p  |  p  p  |      d: rows with one token, first
    row      | 0 | 1 | 2 |      3       |   4    |
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class SharedLevel:
    """Runs of decode rows that read the same keys: G groups, on the pool's device.

    `group_starts` (G + 1,) int32: group g is the decode rows from group_starts[g] up to
    group_starts[g + 1]. Every decode row is in exactly one group; a group may be empty.
    `key_starts`, `key_ends` (G,) int32: the positions that its rows read together. Their
    block ids are the same in the rows' tables. Equal where nothing is shared.
    """

    group_starts: Tensor
    key_starts: Tensor
    key_ends: Tensor
    max_group_rows: int  # bound on the rows of one group that shares something


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """What decode rows that grow from one node share, so that it is read once for all.

    Level by level the key ranges of a row follow each other from position 0, and the row's
    own keys follow them: `own_starts` (R,) int32, whole blocks, at most the row's context.
    """

    levels: tuple[SharedLevel, ...]
    own_starts: Tensor


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """Rows R, tokens T, block size B. All tensors on the pool's device.

    `query_starts` (R + 1,) int32: where each row's tokens start; the last is T.
    `context_lens` (R,) int32: tokens with KV behind this step, the row's new ones included.
    `block_tables` (R, max blocks) int32: block ids by position; what lies behind a row's
    context is undefined.
    A row whose context is 0 is padding: it has no keys, and its outputs are 0.
    `positions` (T,) int64: position of each token in its sequence.
    `slots` (T,) int64: block id * B + offset: where each token's KV is written.
    """

    query_starts: Tensor
    context_lens: Tensor
    block_tables: Tensor
    positions: Tensor
    slots: Tensor
    num_decodes: int  # leading rows with exactly one token
    max_query_len: int
    max_context_len: int
    shared: SharedPrefix | None = None  # only for speed: the result is the same without
    # (num_decodes * Hkv,) int32 zeros, in which a decode kernel counts the parts of an output that
    # are written (`decode_attention`); zeros again after each launch. None: allocated at a launch.
    arrivals: Tensor | None = None
    # (levels + 1, 2) int32, level by level and then for the rows' own keys: how many keys one unit
    # of decode attention holds at most, and how many units there are beyond one an item, chosen for
    # these very lengths (`unit_sizes`). None: nothing is cut.
    units: Tensor | None = None

    @property
    def num_rows(self) -> int:
        """R."""
        return int(self.context_lens.shape[0])


def kv_pool_shape(
    num_blocks: int, num_layers: int, num_kv_heads: int, block_size: int, head_dim: int
) -> tuple[int, int, int, int, int, int]:
    """(blocks, layers, 2, kv heads, block size, head dim): a block is one contiguous run."""
    return (num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim)


def layer_view(pool: Tensor, layer: int) -> Tensor:
    """One layer of the pool, (blocks, 2, kv heads, block size, head dim), strided, no copy."""
    return pool[:, layer]


def no_arrivals(num_decodes: int, pool: Tensor) -> Tensor:
    """`BatchLayout.arrivals` for all layers of `pool`, which use it one after the other."""
    return torch.zeros(num_decodes * pool.shape[3], dtype=torch.int32, device=pool.device)


def empty_pool(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Allocate a pool. Zeroed, so that a masked read of a never-written slot is finite."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # numpy's zeros take no memory before they are written (calloc); torch's are written at once,
    # which takes seconds, and gigabytes that may never be used.
    zeros = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(zeros).view(dtype).view(shape)
