"""The kernel between the QKV product and attention: split, head norms, rotation, writing of KV.

    qkv (T, (Hq + 2 Hkv) * D) = [q heads | k heads | v heads]
    q, k -> rms_norm per head, if the model has the weights (Qwen3)
    v -> rms_norm per head without weights, if the model norms values (Gemma 4)
    q, k -> rotated: (a, b) -> (a cos - b sin, b cos + a sin), a and b the halves of a head, or of
            its first R numbers if the table has R columns; the other numbers do not change
    k, v -> kv[slot // B, 0 and 1, head, slot % B]

If queries have gates, each q head is followed by its gate, which is skipped.

If qkv has (Hq + Hkv) * D numbers per token, it has no v heads: v is k before the norm of k. If it
has Hq * D, it has only queries, for a layer that reads another layer's keys. Then no KV is written.

The norm rounds like `rms_norm`. The rotation is computed in float32 from float32 tables, and
rounded once at the end. `transformers` rotates in the dtype of the model, which is less exact in
bf16 and fp16.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.kv import fp8_kv
from kernels.attention.kv.fp8_kv import head_scales, is_fp8, scales_of_head
from kernels.e4m3 import to_e4m3
from kernels.errors import UnsupportedShape
from kernels.launch.dependent_launch import dependent_launch, launch_dependents, wait_for_previous
from kernels.launch.rounding import cdiv, next_power_of_2
from kernels.limits import check_attention
from kernels.linear import split_k as parts
from kernels.linear.split_k import load_summed
from kernels.norms import rms_norm

_HEADS = 8


def reference(
    qkv: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    kv: Tensor,
    slots: Tensor,
    num_q_heads: int,
    dtype: torch.dtype,
    norms_values: bool = False,
    gated: bool = False,
) -> Tensor:
    """Return the rotated q (T, Hq, D). Write k and v of each token to its slot.

    Plain PyTorch.

    positions and slots are (T,) int64, and slots are distinct. cos_sin (P, R) float32 has R/2
    cosines and then R/2 sines per position. R is even and at most D. q_norm and k_norm (D,) are
    weights as for `rms_norm`, or None. kv (N, 2, Hkv, B, D) is one layer of the pool, strided, of
    `dtype` or fp8 (`fp8_kv`). qkv is of `dtype`, or in parts. Raises UnsupportedShape.
    """
    _, _, num_kv_heads, block_size, head_dim = kv.shape
    check_attention(num_q_heads, num_kv_heads, block_size=block_size, head_dim=head_dim)
    qkv = parts.whole(qkv, dtype)
    q_width = num_q_heads * (1 + gated)
    kinds = _kinds(qkv.shape[1], q_width, num_kv_heads, head_dim)
    heads = qkv.view(qkv.shape[0], q_width + kinds * num_kv_heads, head_dim)
    q, others = heads[:, : q_width : 1 + gated], heads[:, q_width:]
    cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)
    q = _rotate(_norm(q, q_norm, eps), cos, sin)
    if not kinds:
        return q
    k, v = others[:, :num_kv_heads], others[:, -num_kv_heads:]
    if norms_values:
        v = rms_norm.reference(v, torch.ones(head_dim, device=v.device), eps)
    k = _rotate(_norm(k, k_norm, eps), cos, sin)
    both = torch.stack((k, v), dim=1)
    if is_fp8(kv):
        fp8_kv.write(kv, slots, both)
    else:
        kv[slots // block_size, :, :, slots % block_size] = both
    return q


def _kinds(width: int, num_q_heads: int, num_kv_heads: int, head_dim: int) -> int:
    """Return whether a product of this width has keys and values (2), keys (1) or neither (0).

    Gates count as query heads.
    """
    kinds, rest = divmod(width - num_q_heads * head_dim, num_kv_heads * head_dim)
    if rest or not 0 <= kinds <= 2:
        raise UnsupportedShape(
            f"a product of {width} numbers for {num_q_heads} query heads and {num_kv_heads} KV "
            f"heads of {head_dim}"
        )
    return kinds


def _norm(heads: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return heads if weight is None else rms_norm.reference(heads, weight, eps)


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    a, b, others = heads.float().split([half, half, heads.shape[-1] - 2 * half], dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin, others), dim=-1).to(heads.dtype)


@triton.jit
def _inverse_rms(low: tl.tensor, high: tl.tensor, eps: tl.tensor, D: tl.constexpr) -> tl.tensor:
    """Return the factors (heads, 1) that norm heads, given as two halves (heads, D/2)."""
    mean_square = (tl.sum(low * low, axis=1) + tl.sum(high * high, axis=1)) / D
    return tl.rsqrt(mean_square + eps)[:, None]


@triton.jit
def _normed_halves(
    low: tl.tensor,
    high: tl.tensor,
    weight: tl.tensor,
    half: tl.tensor,
    first: tl.tensor,
    gap: tl.tensor,
    eps: tl.tensor,
    DTYPE: tl.constexpr,
    D: tl.constexpr,
) -> tl.tensor:
    """Norm the two halves (heads, D/2) of heads. Round to DTYPE like `rms_norm`."""
    inside = half < D // 2
    scale = _inverse_rms(low, high, eps, D)
    low_weight = tl.load(weight + first, mask=inside, other=0.0)
    high_weight = tl.load(weight + gap + first, mask=inside, other=0.0)
    dtype = low_weight.dtype
    low = ((low * scale).to(dtype).to(tl.float32) * low_weight.to(tl.float32)).to(dtype)
    high = ((high * scale).to(dtype).to(tl.float32) * high_weight.to(tl.float32)).to(dtype)
    return low.to(DTYPE).to(tl.float32), high.to(DTYPE).to(tl.float32)


@triton.jit
def _rope_write_kv_kernel(
    qkv: tl.tensor,
    positions: tl.tensor,
    cos_sin: tl.tensor,
    q_norm: tl.tensor,
    k_norm: tl.tensor,
    eps: tl.tensor,
    kv: tl.tensor,
    slots: tl.tensor,
    q_out: tl.tensor,
    part_stride: tl.tensor,
    qkv_stride: tl.tensor,
    block_stride: tl.tensor,
    value_stride: tl.tensor,
    head_stride: tl.tensor,
    PARTS: tl.constexpr,
    HQ: tl.constexpr,
    HKV: tl.constexpr,
    B: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    HAS_Q_NORM: tl.constexpr,
    HAS_K_NORM: tl.constexpr,
    NORMS_VALUES: tl.constexpr,
    SHARED: tl.constexpr,
    GATED: tl.constexpr,
    FP8: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    launch_dependents(DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    half = tl.arange(0, HALF)[None, :]
    inside = (head < HQ + 2 * HKV) & (half < D // 2)
    if R == D:
        first = half
        gap: tl.constexpr = D // 2
    else:  # rotated pairs, then unrotated pairs, which have the angle zero
        first = tl.where(half < R // 2, half, half + R // 2)
        gap = tl.where(half < R // 2, R // 2, D // 2 - R // 2)
    # The slot of a token is an input of the step, so it can be read while qkv is still being
    # written.
    table = cos_sin + tl.load(positions + token) * R + half
    cos = tl.load(table, mask=half < R // 2, other=0.0 if R == D else 1.0)
    sin = tl.load(table + R // 2, mask=half < R // 2, other=0.0)
    slot = tl.load(slots + token)
    wait_for_previous(DEPENDENT)

    is_query, is_value = head < HQ, head >= HQ + HKV
    made = head
    if SHARED:
        made = tl.where(is_value, head - HKV, head)
    if GATED:
        made = tl.where(is_query, 2 * head, HQ + made)
    source = qkv + token * qkv_stride + made * D + first
    dtype = q_out.dtype.element_ty
    raw_low = load_summed(source, part_stride, inside, PARTS).to(dtype)
    raw_high = load_summed(source + gap, part_stride, inside, PARTS).to(dtype)
    low, high = raw_low.to(tl.float32), raw_high.to(tl.float32)
    if NORMS_VALUES:
        scale_v = _inverse_rms(low, high, eps, D)
        raw_low = tl.where(is_value, (low * scale_v).to(dtype), raw_low)
        raw_high = tl.where(is_value, (high * scale_v).to(dtype), raw_high)
    if HAS_Q_NORM:
        low_q, high_q = _normed_halves(low, high, q_norm, half, first, gap, eps, dtype, D)
        low, high = tl.where(is_query, low_q, low), tl.where(is_query, high_q, high)
    if HAS_K_NORM:
        low_k, high_k = _normed_halves(low, high, k_norm, half, first, gap, eps, dtype, D)
        is_key = (head >= HQ) & (head < HQ + HKV)
        low, high = tl.where(is_key, low_k, low), tl.where(is_key, high_k, high)

    out_low = tl.where(is_value, raw_low, (low * cos - high * sin).to(dtype))
    out_high = tl.where(is_value, raw_high, (high * cos + low * sin).to(dtype))

    goal = q_out + (token * HQ + head) * D + first
    tl.store(goal, out_low, mask=inside & is_query)
    tl.store(goal + gap, out_high, mask=inside & is_query)

    kv_head = tl.where(is_value, head - HQ - HKV, head - HQ)
    kept = kv + (slot // B) * block_stride + (slot % B) * D
    kept = kept + is_value.to(tl.int64) * value_stride + kv_head * head_stride + first
    if FP8:
        low, high = out_low.to(tl.float32), out_high.to(tl.float32)
        low, high = tl.where(inside, low, 0.0), tl.where(inside, high, 0.0)
        scale = head_scales(low, high)
        of_heads = scales_of_head(kv, 0, HKV, B, D) + (slot // B) * (block_stride // 2) + slot % B
        of_heads += (is_value.to(tl.int64) * HKV + kv_head) * B
        is_kept = (head >= HQ) & (head < HQ + 2 * HKV)
        tl.store(of_heads, scale.to(tl.bfloat16), mask=is_kept)
        inverse = tl.div_rn(tl.full(scale.shape, 1.0, tl.float32), scale)
        out_low, out_high = to_e4m3(low, inverse), to_e4m3(high, inverse)
    tl.store(kept, out_low, mask=inside & (head >= HQ))
    tl.store(kept + gap, out_high, mask=inside & (head >= HQ))


def launch(
    qkv: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    kv: Tensor,
    slots: Tensor,
    num_q_heads: int,
    dtype: torch.dtype,
    norms_values: bool = False,
    gated: bool = False,
) -> Tensor:
    """Compute `reference` on the device in one kernel. The D numbers of a head are contiguous."""
    _, _, num_kv_heads, block_size, head_dim = kv.shape
    check_attention(num_q_heads, num_kv_heads, block_size=block_size, head_dim=head_dim)
    kinds = _kinds(qkv.shape[-1], num_q_heads * (1 + gated), num_kv_heads, head_dim)
    kept_heads = num_kv_heads if kinds else 0
    tokens = qkv.shape[-2]
    q_out = torch.empty((tokens, num_q_heads, head_dim), dtype=dtype, device=qkv.device)
    if tokens:
        num_parts, *strides = parts.layout(qkv)
        grid = (tokens, cdiv(num_q_heads + 2 * kept_heads, _HEADS))
        _rope_write_kv_kernel[grid](
            qkv,
            positions,
            cos_sin,
            q_norm,
            k_norm,
            eps,
            kv,
            slots,
            q_out,
            *strides,
            *kv.stride()[:3],
            PARTS=num_parts,
            HQ=num_q_heads,
            HKV=kept_heads,
            B=block_size,
            D=head_dim,
            R=cos_sin.shape[1],
            HALF=next_power_of_2(head_dim // 2),
            HEADS=_HEADS,
            HAS_Q_NORM=q_norm is not None,
            HAS_K_NORM=k_norm is not None,
            NORMS_VALUES=norms_values,
            SHARED=kinds == 1,
            GATED=gated,
            FP8=is_fp8(kv) and kinds > 0,
            **dependent_launch(qkv.device),
        )
    return q_out
