"""A plain stand-in for `kernels.ops.torch_ops`: obvious, slow, right."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.batch_layout import BatchLayout
from kernels.ops import Ops


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm(total, weight, eps), total


def silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = heads.float().chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1).to(heads.dtype)


def rope_write_kv(
    qkv: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    kv: Tensor,
    slots: Tensor,
    num_q_heads: int,
) -> Tensor:
    num_kv_heads, block_size, head_dim = kv.shape[2:]
    heads = qkv.view(qkv.shape[0], -1, head_dim)
    query, key, value = heads.split((num_q_heads, num_kv_heads, num_kv_heads), dim=1)
    if q_norm is not None and k_norm is not None:
        query, key = rms_norm(query, q_norm, eps), rms_norm(key, k_norm, eps)
    cos, sin = cos_sin[positions][:, None].chunk(2, dim=-1)
    blocks, offsets = slots // block_size, slots % block_size
    kv[blocks, 0, :, offsets] = rotate(key, cos, sin).to(kv.dtype)
    kv[blocks, 1, :, offsets] = value.to(kv.dtype)
    return rotate(query, cos, sin)


def paged_attention(query: Tensor, kv: Tensor, layout: BatchLayout, scale: float) -> Tensor:
    out = torch.empty_like(query)
    starts, lengths = layout.query_starts.tolist(), layout.context_lens.tolist()
    block_size = kv.shape[3]
    for row, length in enumerate(lengths):
        first, last = starts[row], starts[row + 1]
        table = layout.block_tables[row, : -(-length // block_size)].long()
        # (blocks, 2, heads, block, dim) -> (2, heads, tokens, dim)
        context = kv[table].permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :length].to(query.dtype)
        rows = query[first:last].transpose(0, 1)
        mask = torch.arange(length) <= torch.arange(length - (last - first), length)[:, None]
        attended = F.scaled_dot_product_attention(
            rows, context[0], context[1], attn_mask=mask, scale=scale, enable_gqa=True
        )
        out[first:last] = attended.transpose(0, 1)
    return out


def copy_blocks(pool: Tensor, source: Tensor, target: Tensor) -> None:
    pool[target] = pool[source]


def plain_ops() -> Ops:
    return Ops(
        rms_norm=rms_norm,
        add_rms_norm=add_rms_norm,
        silu_mul=silu_mul,
        rope_write_kv=rope_write_kv,
        paged_attention=paged_attention,
        copy_blocks=copy_blocks,
    )
