"""The causal attention of each row's new tokens over its cached prefix and the new tokens.

The token at position t of a row attends to the keys at positions 0..t of the row:

    out[h] = sum_j softmax_j(scale * q[h] . k_j[h // group]) v_j[h // group]

There are variants (`AttentionVariant`): with a window, with soft-capped scores, with sinks.

The KV of the new tokens is already in the pool (`rope_write_kv`). Numbers after a row's context do
not affect the result, even if they are NaN or invalid block ids. The result of a row does not
depend on other rows of the batch. In the reference this is exact to the last bit.

On the device, `decode_attention` computes the leading rows, which have one token, and
`prefill_attention` the other rows.
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
    """Compute the attention of q (T, Hq, D) over one layer of the pool -> (T, Hq, D).

    kv (N, 2, Hkv, B, D), strided, is of q's dtype, or fp8 with scales (`fp8_kv`). sinks (Hq,) are
    of any float dtype. Plain PyTorch in float32, one row after the other. Engines on a CPU use this
    function. Raises UnsupportedShape.
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
    """Gather the keys and values of one row, (Hkv, context, D) each, contiguous float32."""
    _, _, num_kv_heads, block_size, head_dim = kv.shape
    blocks = table[: -(-context // block_size)].long()
    if is_fp8(kv):
        gathered = dequantised(kv, blocks).permute(1, 2, 0, 3, 4).contiguous()
    else:
        # The heads are permuted before the gather, so that its result is contiguous. Transposing
        # after the gather would take twice as long.
        gathered = kv.permute(1, 2, 0, 3, 4).index_select(2, blocks)
    both = gathered.view(2, num_kv_heads, -1, head_dim)[:, :, :context].float()
    return both[0], both[1]


def launch(
    q: Tensor, kv: Tensor, layout: BatchLayout, variant: AttentionVariant, sinks: Tensor | None
) -> Tensor:
    """Compute `reference` on the device. q, and the numbers of each slot of kv, are contiguous."""
    _check(q, kv)
    out = torch.empty_like(q)
    decode_attention.launch(q, kv, layout, variant, sinks, out)
    prefill_attention.launch(q, kv, layout, variant, sinks, out)
    return out


def _check(q: Tensor, kv: Tensor) -> None:
    _, _, num_kv_heads, block_size, head_dim = kv.shape
    check_attention(q.shape[1], num_kv_heads, block_size=block_size, head_dim=head_dim)
