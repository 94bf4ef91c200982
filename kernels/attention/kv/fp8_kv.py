"""The keys and values in fp8 (e4m3), with one scale per token and head.

    one layer of a block  | keys | values | scales of keys | scales of values |
                            (Hkv, B, D) e4m3, twice          (Hkv, B) bfloat16, twice

    scale = max(largest of the D numbers, 1e-10) / 448, rounded up to bfloat16
    values = round(x * (1 / scale)) to e4m3

The view of a layer in the pool contains only the numbers. Their scales follow in the same block.
The bytes of a token depend only on this token, so later tokens of the block do not change them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.e4m3 import E4M3, fits, rounded
from kernels.limits import KV_SCALE_BYTES

_LEAST = 1e-10


def is_fp8(kv: Tensor) -> bool:
    """Return whether a layer's view (N, 2, Hkv, B, D) is in fp8, so that scales follow it."""
    return kv.dtype == E4M3


def scales_of(kv: Tensor) -> Tensor:
    """Return a view of the bfloat16 scales that follow a layer's view (N, 2 or 1, Hkv, B, D).

    It is (N, 2, Hkv, B), or (N, 1, Hkv, B) for a layer without values.
    """
    blocks, planes, heads, size, dim = kv.shape
    memory = kv.new_empty(0, dtype=torch.bfloat16).set_(kv.untyped_storage())
    first = (kv.storage_offset() + planes * heads * size * dim) // KV_SCALE_BYTES
    strides = kv.stride(0) // KV_SCALE_BYTES, heads * size, size, 1
    return memory.as_strided((blocks, planes, heads, size), strides, first)


def quantised(heads: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise heads (..., D) -> e4m3 (..., D), scales (...) bfloat16. Plain PyTorch."""
    wide = heads.float()
    largest = wide.abs().amax(-1).clamp(min=_LEAST)
    scales = _rounded_up(fits(largest))
    return rounded(wide * scales.reciprocal()[..., None]), scales.bfloat16()


def _rounded_up(scales: Tensor) -> Tensor:
    """Round up to the next bfloat16 number, as float32."""
    return ((scales.view(torch.int32) + 0xFFFF) & -0x10000).view(torch.float32)


def write(kv: Tensor, slots: Tensor, keys_values: Tensor) -> None:
    """Quantise keys_values (T, 2, Hkv, D), and write them to `slots` (T,). Plain PyTorch."""
    values, scales = quantised(keys_values)
    block, place = slots // kv.shape[3], slots % kv.shape[3]
    # Write fp8 as bytes, because torch has no indexed fp8 writes on a CPU.
    kv.view(torch.uint8)[block, :, :, place] = values.view(torch.uint8)
    scales_of(kv)[block, :, :, place] = scales


def dequantised(kv: Tensor, blocks: Tensor) -> Tensor:
    """Dequantise blocks (n,) of a layer -> (n, 2, Hkv, B, D) float32. Plain PyTorch."""
    numbers = kv.view(torch.uint8).index_select(0, blocks).view(E4M3).float()
    return numbers * scales_of(kv).index_select(0, blocks).float()[..., None]


@triton.jit
def head_scales(low: tl.tensor, high: tl.tensor) -> tl.tensor:
    """Compute the scales (heads, 1) float32 of heads given as two halves (heads, D / 2).

    Numbers after D / 2 must be 0.
    """
    return rounded_scale(tl.maximum(tl.max(tl.abs(low), axis=1), tl.max(tl.abs(high), axis=1)))


@triton.jit
def rounded_scale(largest: tl.tensor) -> tl.tensor:
    """Compute scales (heads, 1) from the heads' largest numbers (heads,).

    The scales are float32, rounded to bfloat16.
    """
    scale = tl.div_rn(tl.maximum(largest, 1e-10), tl.full(largest.shape, 448.0, tl.float32))
    bits = (scale.to(tl.int32, bitcast=True) + 0xFFFF) & -0x10000
    return bits.to(tl.float32, bitcast=True)[:, None]


@triton.jit
def scales_of_head(
    kv: tl.tensor, kv_head: tl.tensor, KV_HEADS: tl.constexpr, B: tl.constexpr, D: tl.constexpr
) -> tl.tensor:
    """Return a pointer to the scales of a head's keys, in block 0 of the layer at `kv`."""
    return (kv + 2 * KV_HEADS * B * D).to(tl.pointer_type(tl.bfloat16), bitcast=True) + kv_head * B
