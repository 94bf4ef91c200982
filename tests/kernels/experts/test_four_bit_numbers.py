"""Every four-bit number, at every position of a word, is widened to the right number.

The interpreter has no assembly, so the instructions are emulated here, on registers of two halves.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.experts import four_bit_numbers
from kernels.experts.four_bit_matrices import Kind, codes_of, int4_scales, mxfp4_scales
from kernels.experts.four_bit_numbers import BY_OPERATIONS, PACKED, numbers, scale_of_place
from tests.kernels.experts.four_bits import E2M1

WORDS = torch.arange(1 << 16)
# the exponent for each position in a word
EXPONENTS = torch.tensor([[120, 119, 128, 3]], dtype=torch.uint8)
SCALE, ZERO = 0.01171875, 13  # exact in 16 bits
FORMS = pytest.mark.parametrize(
    ("kind", "dtype"),
    [("mxfp4", torch.bfloat16), ("int4", torch.bfloat16), ("int4", torch.float16)],
    ids=str,
)
ASM = ("FIRST", "SECOND", "THIRD", "FOURTH")


@triton.jit
def _all_places(
    words: tl.tensor,
    scales: tl.tensor,
    out: tl.tensor,
    of_scales: tl.tensor,
    N: tl.constexpr,
    MXFP4: tl.constexpr,
) -> None:
    """Compute out (4, N), the words' numbers, and of_scales (4, 2), the device's factors."""
    index, one = tl.arange(0, N), tl.arange(0, 1)
    given, bits = tl.load(words + index[None, :]), tl.load(scales + one)
    dtype: tl.constexpr = out.dtype.element_ty
    for place in tl.static_range(4):
        scale, zero = scale_of_place(bits, dtype, place, MXFP4, BY_OPERATIONS)
        found = numbers(given, scale, zero, dtype, place, MXFP4, BY_OPERATIONS)
        tl.store(out + place * N + index[None, :], found)
        scale, zero = scale_of_place(bits, dtype, place, MXFP4, PACKED)
        tl.store(of_scales + 2 * place + one, scale)
        tl.store(of_scales + 2 * place + 1 + one, zero)


def widened(kind: Kind, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Widen the numbers at all positions of words, as `_all_places` does."""
    if kind == "mxfp4":
        scales = mxfp4_scales(EXPONENTS)[0]
    else:
        scales = int4_scales(torch.tensor([SCALE]), ZERO)
    out = torch.empty(4, 1 << 16, dtype=dtype)
    of_scales = torch.empty(4, 2, dtype=torch.int32)
    words = WORDS.to(torch.int32).to(torch.int16)
    _all_places[(1,)](words, scales, out, of_scales, 1 << 16, kind == "mxfp4")
    return out, of_scales


def wanted(kind: Kind, dtype: torch.dtype) -> Tensor:
    """Return the expected numbers (4, 65536) of `dtype`."""
    words = WORDS.to(torch.int32).to(torch.int16).view(1, -1, 1).expand(1, 1 << 16, 32)
    codes = codes_of(words, kind).view(1 << 16, 4, 32)[:, :, 0].T
    if kind == "int4":
        return ((codes - ZERO).double() * SCALE).to(dtype)
    signed = torch.tensor([*E2M1, *(-one for one in E2M1)], dtype=torch.float64)
    return (signed[codes] * (EXPONENTS[0].double() - 127).exp2()[:, None]).to(dtype)


@FORMS
def test_every_word_is_widened_exactly(kind: Kind, dtype: torch.dtype) -> None:
    got, _ = widened(kind, dtype)
    assert torch.equal(got, wanted(kind, dtype))
    assert not torch.equal(got[0], wanted(kind, dtype)[1]), "the control"


@FORMS
@pytest.mark.parametrize("neighbour", [0, 0xFFFF, 0x5AA5])
@pytest.mark.parametrize("is_second", [False, True])
def test_two_in_a_register_do_not_touch(
    kind: Kind, dtype: torch.dtype, neighbour: int, is_second: bool
) -> None:
    mine, other = (16, 0) if is_second else (0, 16)
    words = (WORDS << mine) | (neighbour << other)
    _, of_scales = widened(kind, dtype)
    for place, right in enumerate(wanted(kind, dtype)):
        scale, zero = of_scales[place].long() & 0xFFFFFFFF
        name = f"{ASM[place]}_E2M1" if kind == "mxfp4" else f"INTEGERS_{str(dtype)[6:].upper()}"
        given = {"$1": words, "$2": scale, "$4": zero, "$6": torch.tensor(4 * place)}
        register = run(getattr(four_bit_numbers, name).value, given)
        assert torch.equal(half(register, mine, dtype), right.double())


def run(asm: str, given: dict[str, Tensor]) -> Tensor:
    """Run the instructions on registers, int64 that hold 32 bits; return the result."""
    values = dict(given)
    asm = re.sub(r"\.reg[^;]*;", "", asm)
    for name, kind, operands in re.findall(r"(\w+)\.([\w.]+) ([^;]+);", asm):
        into, *others = operands.split(", ")
        values[into] = result(name, kind, [operand(one, values) for one in others])
    return values["$0"]


def operand(text: str, values: dict[str, Tensor]) -> Tensor:
    return values[text] if text in values else torch.tensor(int(text, 0))


def result(name: str, kind: str, of: list[Tensor]) -> Tensor:
    match name:
        case "mov":
            return of[0]
        case "and":
            return of[0] & of[1]
        case "or":
            return of[0] | of[1]
        case "shl":
            return (of[0] << of[1]) & 0xFFFFFFFF
        case "shr":
            return of[0] >> of[1]
        case "lop3":
            assert int(of[3]) == 0xEA
            return (of[0] & of[1]) | of[2]
    dtype = torch.bfloat16 if "bf16x2" in kind else torch.float16
    ways: dict[str, Callable[..., Tensor]] = {
        "fma": lambda a, b, c: a * b + c,
        "add": lambda a, b: a + b,
        "mul": lambda a, b: a * b,
    }
    low, high = (bits(ways[name](*(half(one, at, dtype) for one in of)), dtype) for at in (0, 16))
    return low | high << 16


def half(register: Tensor, at: int, dtype: torch.dtype) -> Tensor:
    """Return the numbers in half `at` of the registers, as float64."""
    return ((register >> at) & 0xFFFF).to(torch.int32).to(torch.int16).view(dtype).double()


def bits(number: Tensor, dtype: torch.dtype) -> Tensor:
    return number.to(dtype).view(torch.int16).long() & 0xFFFF
