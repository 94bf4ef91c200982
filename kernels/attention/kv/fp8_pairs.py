"""The loading of fp8 (e4m3) keys and values in pairs, and their conversion by bit shifts.

Two neighbouring numbers of a row are read as one 16-bit number. The even column is in the low byte,
the odd column in the high byte. A tile in shared memory then consists of 16-bit numbers, for which
there are instructions that load and transpose. The products of even and of odd columns are computed
separately.

The bits of e4m3 are moved to the sign, the last exponent bits and the first fraction bits of a
wider type. The result is the same number times a power of two, also for subnormal numbers. The
scales compensate for this power:

    e4m3       s eeee fff      value                       bias 7
    bfloat16   s 0000eeee fff0000        value * 2^-120    bias 127
    float16    s 0eeee fff0000000        value * 2^-8      bias 15

Without this, the hardware converts e4m3 to float16, and float16 to bfloat16 one number at a time.
The gain has not been measured on a device yet. This module has only device code. NaN becomes a
finite number, but the scale of its head stays NaN.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.kv.fp8_kv import is_fp8

BY_OPERATIONS, PACKED = 1, 2

# Unpack two pairs of a register together: shift the signs and the other bits into place.
LOW_BFLOAT16 = tl.constexpr("""{ .reg .b32 s, m;
    shl.b32 s, $1, 8; shl.b32 m, $1, 4;
    and.b32 s, s, 0x80008000; and.b32 m, m, 0x07f007f0; or.b32 $0, s, m; }""")
HIGH_BFLOAT16 = tl.constexpr("""{ .reg .b32 s, m;
    shr.u32 m, $1, 4;
    and.b32 s, $1, 0x80008000; and.b32 m, m, 0x07f007f0; or.b32 $0, s, m; }""")
LOW_FLOAT16 = tl.constexpr("""{ .reg .b32 s, m;
    shl.b32 s, $1, 8; shl.b32 m, $1, 7;
    and.b32 s, s, 0x80008000; and.b32 m, m, 0x3f803f80; or.b32 $0, s, m; }""")
HIGH_FLOAT16 = tl.constexpr("""{ .reg .b32 s, m;
    shr.u32 m, $1, 1;
    and.b32 s, $1, 0x80008000; and.b32 m, m, 0x3f803f80; or.b32 $0, s, m; }""")


def pairs_of(q: Tensor, kv: Tensor) -> int:
    """Choose how to unpack pairs: PACKED in registers, BY_OPERATIONS on a CPU, 0: no pairs."""
    if not is_fp8(kv) or q.dtype not in (torch.bfloat16, torch.float16):
        return 0
    return PACKED if kv.is_cuda else BY_OPERATIONS


@triton.jit
def pair_pointer(kv: tl.tensor) -> tl.tensor:
    """Cast a pointer to fp8 numbers to a pointer to pairs."""
    return kv.to(tl.pointer_type(tl.int16), bitcast=True)


@triton.jit
def queries_of(
    q: tl.tensor, place: tl.tensor, real: tl.tensor, D: tl.constexpr, HALF: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Load the even and the odd columns, (M, HALF) each, of the rows of q that begin at `place`."""
    column = tl.arange(0, HALF)
    address = q + place[:, None] + 2 * column[None, :]
    inside = real[:, None] & (column < D // 2)[None, :]
    return tl.load(address, mask=inside, other=0.0), tl.load(address + 1, mask=inside, other=0.0)


@triton.jit
def shift_of_keys(dtype: tl.constexpr) -> tl.tensor:
    """Return the factor that restores a converted key: 2^120 (bfloat16) or 2^8 (float16)."""
    return _power_of_2(8 if dtype == tl.float16 else 120)


@triton.jit
def shift_of_values(dtype: tl.constexpr) -> tl.tensor:
    """Return a factor on attention weights, which restores a part of converted values' scale.

    `together` multiplies the sums of the weighted values by the remaining factor.
    """
    return _power_of_2(8 if dtype == tl.float16 else 64)


@triton.jit
def together(acc: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """Join the sums of even and odd columns to (M, D), and restore the scale of values."""
    whole = tl.interleave(acc[0], acc[1])
    return whole if dtype == tl.float16 else whole * _power_of_2(56)


@triton.jit
def _power_of_2(exponent: tl.constexpr) -> tl.tensor:
    return tl.full([], (127 + exponent) << 23, tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def low_numbers(pairs: tl.tensor, dtype: tl.constexpr, PAIRS: tl.constexpr) -> tl.tensor:
    """Convert the numbers of even columns to `dtype`."""
    if PAIRS == 2:
        return _packed(pairs, dtype, LOW_FLOAT16 if dtype == tl.float16 else LOW_BFLOAT16)
    else:  # noqa: RET505  the compiler wants one type from both
        up: tl.constexpr = 7 if dtype == tl.float16 else 4
        return (((pairs & 0x80) << 8) | ((pairs & 0x7F) << up)).to(dtype, bitcast=True)


@triton.jit
def high_numbers(pairs: tl.tensor, dtype: tl.constexpr, PAIRS: tl.constexpr) -> tl.tensor:
    """Convert the numbers of odd columns to `dtype`."""
    if PAIRS == 2:
        return _packed(pairs, dtype, HIGH_FLOAT16 if dtype == tl.float16 else HIGH_BFLOAT16)
    else:  # noqa: RET505
        down: tl.constexpr = 1 if dtype == tl.float16 else 4
        return ((pairs & -0x8000) | ((pairs & 0x7F00) >> down)).to(dtype, bitcast=True)


@triton.jit
def _packed(pairs: tl.tensor, dtype: tl.constexpr, ASM: tl.constexpr) -> tl.tensor:
    bits = tl.inline_asm_elementwise(ASM, "=r,r", [pairs], dtype=tl.int16, is_pure=True, pack=2)
    return bits.to(dtype, bitcast=True)
