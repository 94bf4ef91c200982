"""The attention to keys and values that a step computes from latents, in a temporary pool.

Expanding saves time if there are many new tokens (`LatentShape`). The kernels are those of ordinary
attention. Blocks are numbered as in `widen_kv`: block i of row r has the id (r - first) * blocks
per row + i. The blocks of one head follow each other, so that its products can be written directly
to their places. Keys or values, whichever are shorter, are padded with zeros.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.attention.batch_layout import BatchLayout
from kernels.attention.kv.fp8_kv import dequantised, is_fp8
from kernels.attention.prefill import prefill_attention
from kernels.attention.variant import AttentionVariant
from kernels.latents.latent_shape import LatentShape
from kernels.latents.scratch import MOST_EXPANDED

# The minimum number of new tokens of a step for expanding. A smaller step may be in a captured
# graph. A graph is captured for the maximum context, and keys and values would be computed for all
# of it.
LEAST_TOKENS = 1_025


def pays(layout: BatchLayout, tokens: int, shape: LatentShape) -> bool:
    """Return whether expanding saves time for the `tokens` tokens of rows after the decodes."""
    rows, context = layout.num_rows - layout.num_decodes, layout.max_context_len
    if tokens < LEAST_TOKENS or rows * context > MOST_EXPANDED:
        return False
    return not shape.absorbs(tokens // rows, context)


def launch(
    q: Tensor, kv: Tensor, weight: Tensor, layout: BatchLayout, shape: LatentShape
) -> Tensor:
    """Compute attention of the rows of q (T, H, N + P) after the decodes -> (T, H, V).

    The rows of decodes are not written. For the arguments, see `latent_attention.launch`.
    """
    pool, own = _expand(kv, weight, layout, shape)
    size = pool.shape[4]
    queries = q if size == shape.head_dim else F.pad(q, (0, size - shape.head_dim))
    out = torch.empty_like(queries)
    variant = AttentionVariant(shape.scale)
    prefill_attention.launch(queries, pool, own, variant, None, out)
    return out[..., : shape.values]


def _expand(
    kv: Tensor, weight: Tensor, layout: BatchLayout, shape: LatentShape
) -> tuple[Tensor, BatchLayout]:
    """Make a pool (n, 2, H, B, D) of keys and values, and a layout with its block ids."""
    heads, block_size = weight.shape[0], kv.shape[3]
    rows, blocks = layout.num_rows - layout.num_decodes, -(-layout.max_context_len // block_size)
    # Ids after a row's context may be anything. The blocks read for them are never attended to.
    ids = layout.block_tables[layout.num_decodes :, :blocks].clamp(0, len(kv) - 1).flatten()
    gathered = dequantised(kv, ids).to(weight.dtype) if is_fp8(kv) else kv.index_select(0, ids)
    latents = gathered.view(-1, shape.latent)
    both = weight.new_empty((2, heads, len(latents), shape.padded_dim))
    keys, values = both
    compressed = latents[:, : shape.rank].expand(heads, -1, -1)
    of_keys, of_values = weight.mT.split([shape.nope, shape.values], dim=2)
    torch.bmm(compressed, of_keys, out=keys[..., : shape.nope])
    torch.bmm(compressed, of_values, out=values[..., : shape.values])
    keys[..., shape.nope : shape.head_dim] = latents[:, shape.rank :]
    keys[..., shape.head_dim :] = 0
    values[..., shape.values :] = 0
    pool = both.unflatten(2, (len(ids), block_size)).permute(2, 0, 1, 3, 4)
    first = -layout.num_decodes * blocks  # blocks of decodes get negative ids, which are never read
    tables = torch.arange(first, rows * blocks, dtype=torch.int32, device=kv.device)
    return pool, replace(layout, block_tables=tables.view(layout.num_rows, blocks))
