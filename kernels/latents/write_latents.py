"""The step between a layer's first products and attention: norm, rotation, the write of latents.

    q (T, H, N + P)    the last P numbers of each head are rotated
    latent (T, R + P)  the first R are normed, the last P are rotated; written to the token's slot

The rotation (a, b) -> (a cos - b sin, b cos + a sin) reads neighbouring numbers (a0, b0, a1, b1,
...) if `interleaved`. Otherwise it reads halves (a0, a1, ..., b0, b1, ...). In both cases it writes
halves. It does so for queries and for keys, so their products do not change. The norm rounds like
`rms_norm`. The rotation is computed in float32 and its result is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.kv import fp8_kv
from kernels.attention.kv.fp8_kv import is_fp8, rounded_scale
from kernels.e4m3 import to_e4m3
from kernels.launch.rounding import cdiv, next_power_of_2
from kernels.norms import rms_norm
from kernels.norms.rms_norm import scaled_rows

_HEADS = 8

WriteLatents = Callable[
    [Tensor, Tensor, Tensor, Tensor, Tensor, float, Tensor, Tensor, int, bool], Tensor
]
"""q (T, H (N + P)), latent (T, R + P), positions, cos_sin, norm (R,), eps, kv (N, 1, 1, B, R + P),
slots, H, interleaved -> q (T, H, N + P); latents go to their slots."""


def reference(
    q: Tensor,
    latent: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    norm: Tensor,
    eps: float,
    kv: Tensor,
    slots: Tensor,
    num_heads: int,
    interleaved: bool,
) -> Tensor:
    """Return the rotated q (T, H, N + P), and write each token's latent to its slot.

    Plain PyTorch. positions and slots are (T,) int64, and all slots differ. cos_sin is (positions,
    P) float32. A row of it has P / 2 cosines, then P / 2 sines. kv is one layer of the pool, with
    any block stride, and has q's dtype or is fp8 (`fp8_kv`).
    """
    block_size, size, rope = kv.shape[3], kv.shape[4], cos_sin.shape[1]
    cos, sin = cos_sin[positions].chunk(2, dim=-1)
    heads = q.unflatten(1, (num_heads, q.shape[1] // num_heads))
    plain, rotated = heads.split([heads.shape[2] - rope, rope], dim=2)
    rotated = _rotate(rotated, cos[:, None], sin[:, None], interleaved)
    compressed, key = latent.split([size - rope, rope], dim=1)
    normed = rms_norm.reference(compressed, norm, eps)
    kept = torch.cat((normed, _rotate(key, cos, sin, interleaved)), dim=1)[:, None, None]
    if is_fp8(kv):
        fp8_kv.write(kv, slots, kept)
    else:
        kv[slots // block_size, :, :, slots % block_size] = kept
    return torch.cat((plain, rotated), dim=2)


@triton.jit
def _rotated(
    source: tl.tensor,
    inside: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    P: tl.constexpr,
    INTERLEAVED: tl.constexpr,
) -> tl.tensor:
    """Load P numbers of each head at `source` (heads, 1), and rotate them -> halves in float32."""
    pair = tl.arange(0, P // 2)[None, :]
    first = 2 * pair if INTERLEAVED else pair
    gap: tl.constexpr = 1 if INTERLEAVED else P // 2
    a = tl.load(source + first, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(source + first + gap, mask=inside, other=0.0).to(tl.float32)
    return a * cos - b * sin, b * cos + a * sin


@triton.jit
def _write_latents_kernel(
    q: tl.tensor,
    latent: tl.tensor,
    positions: tl.tensor,
    cos_sin: tl.tensor,
    norm: tl.tensor,
    eps: tl.tensor,
    kv: tl.tensor,
    slots: tl.tensor,
    out: tl.tensor,
    q_stride: tl.tensor,
    latent_stride: tl.tensor,
    block_stride: tl.tensor,
    HEADS: tl.constexpr,
    AT_ONCE: tl.constexpr,
    B: tl.constexpr,
    N: tl.constexpr,
    N_PADDED: tl.constexpr,
    R: tl.constexpr,
    P: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    FP8: tl.constexpr,
) -> None:
    """Write the latent of a token, if this is the token's first program.

    Each of the token's other programs writes AT_ONCE heads of the query.
    """
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    half = tl.arange(0, P // 2)[None, :]
    table = cos_sin + tl.load(positions + token) * P + half
    cos, sin = tl.load(table), tl.load(table + P // 2)
    dtype = out.dtype.element_ty
    if part == 0:
        number = tl.arange(0, R)[None, :]
        own = latent + token * latent_stride
        normed = scaled_rows(
            tl.load(own + number).to(tl.float32), tl.load(norm + number), eps, R
        ).to(dtype)
        low, high = _rotated(own + R, half >= 0, cos, sin, P, INTERLEAVED)
        low, high = low.to(dtype), high.to(dtype)
        slot = tl.load(slots + token)
        kept = kv + (slot // B) * block_stride + (slot % B) * (R + P)
        if FP8:
            normed, low, high = normed.to(tl.float32), low.to(tl.float32), high.to(tl.float32)
            largest = tl.maximum(tl.max(tl.abs(low), axis=1), tl.max(tl.abs(high), axis=1))
            scale = rounded_scale(tl.maximum(largest, tl.max(tl.abs(normed), axis=1)))
            of_block = (kv + B * (R + P)).to(tl.pointer_type(tl.bfloat16), bitcast=True)
            of_token = of_block + (slot // B) * (block_stride // 2) + slot % B
            tl.store(of_token + tl.arange(0, 1)[:, None], scale.to(tl.bfloat16))
            inverse = tl.div_rn(tl.full(scale.shape, 1.0, tl.float32), scale)
            normed = to_e4m3(normed, inverse)
            low, high = to_e4m3(low, inverse), to_e4m3(high, inverse)
        tl.store(kept + number, normed)
        tl.store(kept + R + half, low)
        tl.store(kept + R + P // 2 + half, high)
    else:
        head = (part - 1) * AT_ONCE + tl.arange(0, AT_ONCE)[:, None]
        column = tl.arange(0, N_PADDED)[None, :]
        real = head < HEADS
        source = q + token * q_stride + head * (N + P)
        goal = out + (token * HEADS + head) * (N + P)
        inside = real & (column < N)
        tl.store(goal + column, tl.load(source + column, mask=inside, other=0.0), mask=inside)
        pairs = real & (half >= 0)
        first, second = _rotated(source + N, pairs, cos, sin, P, INTERLEAVED)
        tl.store(goal + N + half, first.to(dtype), mask=pairs)
        tl.store(goal + N + P // 2 + half, second.to(dtype), mask=pairs)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    wide = x.float()
    a, b = (wide[..., ::2], wide[..., 1::2]) if interleaved else wide.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


def launch(
    q: Tensor,
    latent: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    norm: Tensor,
    eps: float,
    kv: Tensor,
    slots: Tensor,
    num_heads: int,
    interleaved: bool,
) -> Tensor:
    """Compute `reference` on the device in one kernel. Rows of q and latent must be contiguous."""
    tokens, rope = len(q), cos_sin.shape[1]
    head_dim = q.shape[1] // num_heads
    out = torch.empty((tokens, num_heads, head_dim), dtype=q.dtype, device=q.device)
    if tokens:
        _write_latents_kernel[(tokens, 1 + cdiv(num_heads, _HEADS))](
            q,
            latent,
            positions,
            cos_sin,
            norm,
            eps,
            kv,
            slots,
            out,
            q.stride(0),
            latent.stride(0),
            kv.stride(0),
            HEADS=num_heads,
            AT_ONCE=_HEADS,
            B=kv.shape[3],
            N=head_dim - rope,
            N_PADDED=next_power_of_2(head_dim - rope),
            R=kv.shape[4] - rope,
            P=rope,
            INTERLEAVED=interleaved,
            FP8=is_fp8(kv),
        )
    return out
