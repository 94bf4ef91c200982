"""The attention to the latents themselves: a value is the first R numbers of a key.

Programs compute query blocks. If there are too few blocks to use the full device, the latents of
each block are divided among several programs, and `merge_attention` merges their partial outputs.
Hopper has a kernel of its own (`hopper_latents`). `portable_latents` serves all other cases.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.attention import merge_attention
from kernels.attention.batch_layout import BatchLayout
from kernels.latents import hopper_latents, portable_latents
from kernels.latents.latent_shape import LatentShape


def launch(
    q: Tensor, kv: Tensor, layout: BatchLayout, shape: LatentShape, first: int, end: int
) -> Tensor:
    """Compute attention of the rows `first` up to `end` of a step -> (t, H, R).

    Rows before `first` have one token each. q (t, H, R + P) has only the tokens of the rows `first`
    up to `end`. kv (N, 1, 1, B, R + P) is one layer of the pool, of q's dtype or fp8.
    """
    if hopper_latents.serves(q, kv, shape):
        query_blocks, attend = hopper_latents.query_blocks, hopper_latents.attend
    else:
        query_blocks, attend = portable_latents.query_blocks, portable_latents.attend
    blocks = query_blocks(q, layout, (first, end))
    out = q.new_empty((*q.shape[:2], shape.rank))
    if blocks.splits == 1:
        attend(q, kv, layout, shape, blocks, out, out)
        return out
    partial = q.new_empty((blocks.splits, *out.shape), dtype=torch.float32)
    lse = partial.new_empty(partial.shape[:3])
    attend(q, kv, layout, shape, blocks, partial, lse)
    merge_attention.merge_splits(partial, lse, out)
    return out
