"""The device code that converts four-bit numbers (`four_bit_matrices`) by bit shifts.

The bits of e2m1 are moved to the sign, the last exponent bits and the first fraction bits of a
wider type. The result is the same number times a power of two, also for the subnormal 0.5. For
bfloat16 this power is 2^-126, and the scale compensates for it. The order of bits in a word is
chosen for unpacking with few instructions. These are the bits of a word, from the highest on, each
as the number's place (0 to 3) and s for sign, e for exponent or f for fraction:

    15 14 13 12 11 10  9  8  7  6  5  4  3  2  1  0
    0s 3s 3e 1s 3e 3f 2s 0e 0e 0f 1e 1e 1f 2e 2e 2f       bfloat16    s 000000ee f000000

The first number needs a mask, the second and third a shift and a mask each, the fourth six
instructions. Then each number is multiplied by its scale. Together these are 15 instructions for 4
numbers, or for 8, because the words of two columns share a register. For int4, a shift and one
logical instruction put an integer into the last bits of the number 128 (1024 in float16). The zero
point is put there by the same operation, and the difference of the two is exact. Both methods of
unpacking give exactly the numbers of `FourBitMatrix.dequantised`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.experts.four_bit_matrices import FourBitMatrix

BY_OPERATIONS, PACKED = 1, 2

# Registers: $0 has the numbers of two columns, $1 their words, $2 (and $3) the scale in both
# halves. bfloat16 is multiplied by `fma`, which devices before Hopper also have. Adding -0 keeps
# the signs of zeros.
FIRST_E2M1 = tl.constexpr("""{ .reg .b32 n, z;
    mov.b32 z, 0x80008000;
    and.b32 n, $1, 0x81c081c0;
    fma.rn.bf16x2 $0, n, $2, z; }""")
SECOND_E2M1 = tl.constexpr("""{ .reg .b32 n, z;
    mov.b32 z, 0x80008000;
    shl.b32 n, $1, 3; and.b32 n, n, 0x81c081c0;
    fma.rn.bf16x2 $0, n, $2, z; }""")
THIRD_E2M1 = tl.constexpr("""{ .reg .b32 n, z;
    mov.b32 z, 0x80008000;
    shl.b32 n, $1, 6; and.b32 n, n, 0x81c081c0;
    fma.rn.bf16x2 $0, n, $2, z; }""")
FOURTH_E2M1 = tl.constexpr("""{ .reg .b32 n, e, f, z;
    mov.b32 z, 0x80008000;
    shl.b32 n, $1, 1; and.b32 n, n, 0x80008000;
    shr.u32 e, $1, 5; and.b32 e, e, 0x01000100; or.b32 n, n, e;
    shr.u32 f, $1, 4; and.b32 f, f, 0x00c000c0; or.b32 n, n, f;
    fma.rn.bf16x2 $0, n, $2, z; }""")
# Registers: $4 has minus the lifted zero point in both halves, $6 the bit shift of the words. The
# logical operation 0xea is (first & second) | third.
INTEGERS_BFLOAT16 = tl.constexpr("""{ .reg .b32 n, l, o, z;
    mov.b32 l, 0x43004300; mov.b32 o, 0x3f803f80; mov.b32 z, 0x80008000;
    shr.u32 n, $1, $6; lop3.b32 n, n, 0x000f000f, l, 0xea;
    fma.rn.bf16x2 n, n, o, $4;
    fma.rn.bf16x2 $0, n, $2, z; }""")
INTEGERS_FLOAT16 = tl.constexpr("""{ .reg .b32 n, l;
    mov.b32 l, 0x64006400;
    shr.u32 n, $1, $6; lop3.b32 n, n, 0x000f000f, l, 0xea;
    add.rn.f16x2 n, n, $4;
    mul.rn.f16x2 $0, n, $2; }""")


def unpacking_of(matrix: FourBitMatrix) -> int:
    """Choose how to unpack: PACKED (two numbers per register), or BY_OPERATIONS (one by one)."""
    packed = (torch.bfloat16, torch.float16) if matrix.kind == "int4" else (torch.bfloat16,)
    return PACKED if matrix.values.is_cuda and matrix.dtype in packed else BY_OPERATIONS


@triton.jit
def scale_of_place(
    words: tl.tensor,
    dtype: tl.constexpr,
    PLACE: tl.constexpr,
    MXFP4: tl.constexpr,
    UNPACK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Return the factor for the numbers at a place in words, and the offset to subtract first.

    For PACKED, both are int32 with the same 16-bit number in both halves. For BY_OPERATIONS, both
    are float32.
    """
    if MXFP4:
        exponent = (words >> (8 * PLACE)) & 0xFF
        if UNPACK == 2:
            scale = (exponent + 126) * 0x00800080
        else:
            scale = ((exponent + 126) << 23).to(tl.float32, bitcast=True)
        zero = scale  # there is no zero point; any value will do
    else:
        exact = (words & -0x100).to(tl.float32, bitcast=True)
        point = words & 0xFF
        if UNPACK == 2:
            bits = exact.to(dtype).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
            scale = bits * 0x00010001
            # the 16 bits of -1024 (float16) or -128 (bfloat16), in both halves
            LIFTED: tl.constexpr = (0xE400E400 if dtype == tl.float16 else 0xC300C300) - (1 << 32)
            zero = point * 0x00010001 + LIFTED
        else:
            scale = exact
            zero = point.to(tl.float32)
    return scale, zero


@triton.jit
def numbers(
    words: tl.tensor,
    scale: tl.tensor,
    zero: tl.tensor,
    dtype: tl.constexpr,
    PLACE: tl.constexpr,
    MXFP4: tl.constexpr,
    UNPACK: tl.constexpr,
) -> tl.tensor:
    """Unpack the numbers at one place of words (features, columns).

    `scale` and `zero` (features,) are those of `scale_of_place`.
    """
    if UNPACK == 1:
        return _by_operations(words, scale, zero, PLACE, MXFP4).to(dtype)
    elif MXFP4:  # noqa: RET505  the compiler wants one type from all
        FIRST: tl.constexpr = FIRST_E2M1 if PLACE == 0 else SECOND_E2M1
        LAST: tl.constexpr = THIRD_E2M1 if PLACE == 2 else FOURTH_E2M1
        ASM: tl.constexpr = FIRST if PLACE < 2 else LAST
        bits = tl.inline_asm_elementwise(
            ASM, "=r,r,r,r", [words, scale[:, None]], dtype=tl.int16, is_pure=True, pack=2
        )
        return bits.to(dtype, bitcast=True)
    else:
        HOW: tl.constexpr = INTEGERS_FLOAT16 if dtype == tl.float16 else INTEGERS_BFLOAT16
        # a tensor, not a constant, because Gluon calls this function too
        shift = zero[:, None] * 0 + 4 * PLACE
        bits = tl.inline_asm_elementwise(
            HOW,
            "=r,r,r,r,r,r,r,r",
            [words, scale[:, None], zero[:, None], shift],
            dtype=tl.int16,
            is_pure=True,
            pack=2,
        )
        return bits.to(dtype, bitcast=True)


@triton.jit
def _by_operations(
    words: tl.tensor, scale: tl.tensor, zero: tl.tensor, PLACE: tl.constexpr, MXFP4: tl.constexpr
) -> tl.tensor:
    wide = words.to(tl.int32)
    if MXFP4:
        if PLACE == 3:
            bits = ((wide << 1) & 0x8000) | ((wide >> 5) & 0x0100) | ((wide >> 4) & 0x00C0)
        else:
            bits = (wide << (3 * PLACE)) & 0x81C0
        return (bits << 16).to(tl.float32, bitcast=True) * scale[:, None]
    else:  # noqa: RET505
        integers = ((wide >> (4 * PLACE)) & 15).to(tl.float32)
        return (integers - zero[:, None]) * scale[:, None]
