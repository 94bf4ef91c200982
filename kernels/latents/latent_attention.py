"""The causal attention of each row's new tokens over latents, by two equivalent methods.

    k_j = [c_j W_k | r_j],  v_j = c_j W_v     for a head, a latent c_j and its rotated key r_j
    out = sum_j softmax_j(scale q . k_j) v_j                          expanded
        = (sum_j softmax_j(scale [q_n W_k^T | q_r] . [c_j | r_j]) c_j) W_v      absorbed

`LatentShape.absorbs` says which method needs fewer multiplications. The latents of the new tokens
are already in the pool (`write_latents`). As in `paged_attention`, numbers after a row's context
have no effect.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.attention.attend_keys import attend_keys
from kernels.attention.batch_layout import BatchLayout
from kernels.attention.kv.fp8_kv import dequantised, is_fp8
from kernels.attention.variant import AttentionVariant
from kernels.latents import attend_latents, expanded
from kernels.latents.latent_shape import LatentShape
from kernels.limits import check_latents

LatentAttention = Callable[[Tensor, Tensor, Tensor, BatchLayout, LatentShape], Tensor]
"""q (T, H, N + P), kv (N, 1, 1, B, R + P), weight (H, N + V, R), layout, sizes -> (T, H, V)."""


def reference(
    q: Tensor, kv: Tensor, weight: Tensor, layout: BatchLayout, shape: LatentShape
) -> Tensor:
    """Compute the attention of q (T, H, N + P) over one layer of the pool -> (T, H, V).

    kv is of q's dtype, or fp8 with scales (`fp8_kv`). In weight (H, N + V, R), the first N rows of
    a head compute keys, the other V rows values. Plain PyTorch in float32, one row after the other.
    Engines on a CPU use this function. Raises UnsupportedShape.
    """
    _check(kv, shape)
    out = q.new_empty((*q.shape[:2], shape.values))
    starts, contexts = layout.query_starts.tolist(), layout.context_lens.tolist()
    of_keys, of_values = weight.float().split([shape.nope, shape.values], dim=1)
    for row, context in enumerate(contexts):
        new = slice(starts[row], starts[row + 1])
        if not context:
            out[new] = 0
            continue
        latents = _gather(kv, layout.block_tables[row], context)
        attend = _absorbed if shape.absorbs(new.stop - new.start, context) else _expanded
        out[new] = attend(q[new].float(), latents, of_keys, of_values, shape)
    return out


def _gather(kv: Tensor, table: Tensor, context: int) -> Tensor:
    block_size, size = kv.shape[3:]
    blocks = table[: -(-context // block_size)].long()
    gathered = dequantised(kv, blocks) if is_fp8(kv) else kv.index_select(0, blocks)
    return gathered.view(-1, size)[:context].float()


def _absorbed(
    q: Tensor, latents: Tensor, of_keys: Tensor, of_values: Tensor, shape: LatentShape
) -> Tensor:
    """Compute attention of q (n, H, N + P) to latents (context, R + P) themselves -> (n, H, V)."""
    queries, keys = _absorb(q, of_keys, shape), latents[None]
    sums = attend_keys(queries, keys, keys[..., : shape.rank], AttentionVariant(shape.scale), None)
    return torch.einsum("thr,hvr->thv", sums, of_values)


def _expanded(
    q: Tensor, latents: Tensor, of_keys: Tensor, of_values: Tensor, shape: LatentShape
) -> Tensor:
    """Compute keys and values from latents (context, R + P), and attention of q (n, H, N + P)."""
    compressed, rotated = latents.split([shape.rank, shape.rope], dim=1)
    plain, values = compressed @ of_keys.mT, compressed @ of_values.mT
    keys = torch.cat((plain, rotated.expand(len(plain), -1, -1)), dim=2)
    return attend_keys(q, keys, values, AttentionVariant(shape.scale), None)


def launch(
    q: Tensor, kv: Tensor, weight: Tensor, layout: BatchLayout, shape: LatentShape
) -> Tensor:
    """Compute `reference` on the device, without waiting. q and slots of kv must be contiguous."""
    _check(kv, shape)
    decodes, tokens = layout.num_decodes, len(q)
    if tokens > decodes and expanded.pays(layout, tokens - decodes, shape):
        out = expanded.launch(q, kv, weight, layout, shape)
        tokens = decodes
    else:
        out = q.new_empty((*q.shape[:2], shape.values))
    of_keys, of_values = weight.split([shape.nope, shape.values], dim=1)
    queries = _absorb(q[:tokens], of_keys, shape)
    for first, end, own in (
        (0, decodes, slice(decodes)),
        (decodes, layout.num_rows, slice(decodes, tokens)),
    ):
        if own.start != own.stop and len(queries[own]):
            sums = attend_latents.launch(queries[own], kv, layout, shape, first, end)
            torch.bmm(sums.transpose(0, 1), of_values.mT, out=out[own].transpose(0, 1))
    return out


def _absorb(q: Tensor, of_keys: Tensor, shape: LatentShape) -> Tensor:
    """Multiply queries (n, H, N + P) by the weight of keys (H, N, R) -> (n, H, R + P)."""
    plain, rotated = q.split([shape.nope, shape.rope], dim=2)
    absorbed = q.new_empty((*q.shape[:2], shape.latent))
    torch.bmm(plain.transpose(0, 1), of_keys, out=absorbed[..., : shape.rank].transpose(0, 1))
    absorbed[..., shape.rank :] = rotated
    return absorbed


def _check(kv: Tensor, shape: LatentShape) -> None:
    check_latents(
        rank=shape.rank, rope=shape.rope, head_dim=shape.padded_dim, block_size=kv.shape[3]
    )
