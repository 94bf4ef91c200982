"""The causal attention of each row's new tokens over its cached prefix and the new tokens.

The token at position t of a row attends to the keys at positions 0..t of the row:

    out[h] = sum_j softmax_j(scale * q[h] . k_j[h // group]) v_j[h // group]

There are variants (`AttentionVariant`): over a window, with capped scores, with sinks.

The KV of the new tokens is already in the pool (`rope_write_kv`). Numbers after a row's context
have no effect on the result, even NaN or invalid block ids. A row's result does not depend on the
other rows in the batch, in the reference to the last bit.

On the device, `decode_attention` takes the leading rows with one token and `prefill_attention` the
others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.attention.attend_keys import attend_keys
from kernels.attention.batch_layout import BatchLayout
from kernels.attention.decode import decode_attention
from kernels.attention.kv.fp8_kv import dequantised, is_fp8
from kernels.attention.prefill import prefill_attention
from kernels.attention.variant import AttentionVariant
from kernels.limits import check_attention


def reference(
    q: Tensor, kv: Tensor, layout: BatchLayout, variant: AttentionVariant, sinks: Tensor | None
) -> Tensor:
    """Attend q (T, Hq, D) to one layer of the pool -> (T, Hq, D).

    kv (N, 2, Hkv, B, D), strided, is of q's dtype, or fp8 with its scales (`fp8_kv`). sinks (Hq,)
    are of any float dtype. Plain PyTorch, float32 inside, one row after the other. CPU servers use
    this function. Raises UnsupportedShape.
    """
    _check(q, kv)
    out = torch.empty_like(q)
    starts, contexts = layout.query_starts.tolist(), layout.context_lens.tolist()
    for row, context in enumerate(contexts):
        new = slice(starts[row], starts[row + 1])
        if not context:
            out[new] = 0
            continue
        keys, values = _gather(kv, layout.block_tables[row], context)
        out[new] = attend_keys(q[new].float(), keys, values, variant, sinks)
    return out


def _gather(kv: Tensor, table: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """Gather keys and values (Hkv, context, D) of one row, contiguous by head, float32."""
    _, _, num_kv_heads, block_size, head_dim = kv.shape
    blocks = table[: -(-context // block_size)].long()
    if is_fp8(kv):
        gathered = dequantised(kv, blocks).permute(1, 2, 0, 3, 4).contiguous()
    else:
        # Permuting the heads before the gather makes the result contiguous. Transposing after the
        # gather would take twice as long.
        gathered = kv.permute(1, 2, 0, 3, 4).index_select(2, blocks)
    both = gathered.view(2, num_kv_heads, -1, head_dim)[:, :, :context].float()
    return both[0], both[1]


def launch(
    q: Tensor, kv: Tensor, layout: BatchLayout, variant: AttentionVariant, sinks: Tensor | None
) -> Tensor:
    """Compute `reference` on the device, for contiguous q and slots of kv."""
    _check(q, kv)
    out = torch.empty_like(q)
    decode_attention.launch(q, kv, layout, variant, sinks, out)
    prefill_attention.launch(q, kv, layout, variant, sinks, out)
    return out


def _check(q: Tensor, kv: Tensor) -> None:
    _, _, num_kv_heads, block_size, head_dim = kv.shape
    check_attention(q.shape[1], num_kv_heads, block_size=block_size, head_dim=head_dim)
