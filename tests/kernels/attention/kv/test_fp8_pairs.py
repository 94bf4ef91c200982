"""Pairs of fp8 numbers are widened by moving their bits: every pair is right, by both methods."""

from __future__ import annotations

import re

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.kv import fp8_pairs
from kernels.attention.kv.fp8_pairs import BY_OPERATIONS, high_numbers, low_numbers, pairs_of
from kernels.e4m3 import E4M3

PAIRS = torch.arange(1 << 16).to(torch.int32)
NUMBERS = torch.arange(256, dtype=torch.uint8).view(E4M3).double()
LOW, HIGH = NUMBERS[PAIRS & 0xFF], NUMBERS[PAIRS >> 8]
POWER = {torch.bfloat16: 120, torch.float16: 8}
DTYPES = pytest.mark.parametrize("dtype", POWER, ids=str)


@triton.jit
def _both(
    pairs: tl.tensor, low: tl.tensor, high: tl.tensor, N: tl.constexpr, PAIRS: tl.constexpr
) -> None:
    index = tl.arange(0, N)
    both = tl.load(pairs + index)
    tl.store(low + index, low_numbers(both, low.dtype.element_ty, PAIRS))
    tl.store(high + index, high_numbers(both, high.dtype.element_ty, PAIRS))


def same(got: Tensor, dtype: torch.dtype, wanted: Tensor) -> bool:
    """Return whether numbers of `dtype`, times a power of two, equal `wanted`; any NaN equals any
    other.
    """
    times = got.view(dtype).double() * 2.0 ** POWER[dtype]
    return torch.equal(times[~wanted.isnan()], wanted[~wanted.isnan()])


@DTYPES
def test_every_pair_is_widened_exactly(dtype: torch.dtype) -> None:
    low, high = (torch.empty(1 << 16, dtype=dtype) for _ in range(2))
    _both[(1,)](PAIRS.to(torch.int16), low, high, 1 << 16, BY_OPERATIONS)
    assert same(low, dtype, LOW)
    assert same(high, dtype, HIGH)
    assert not same(high, dtype, LOW), "the control"


@pytest.mark.gpu
@DTYPES
def test_so_is_it_on_the_device(dtype: torch.dtype) -> None:
    low, high = (torch.empty(1 << 12, dtype=dtype, device="cuda") for _ in range(2))
    for first in range(0, 1 << 16, 1 << 12):
        some = slice(first, first + (1 << 12))
        _both[(1,)](PAIRS[some].to(torch.int16).cuda(), low, high, 1 << 12, fp8_pairs.PACKED)
        assert same(low.cpu(), dtype, LOW[some])
        assert same(high.cpu(), dtype, HIGH[some])


def number(text: str) -> Tensor:
    """Return an immediate number; 0 for a register's name, which the caller looks up."""
    return torch.tensor(int(text, 0) if text[0].isdigit() else 0)


def run(asm: str, register: Tensor) -> Tensor:
    """Run the instructions on registers (n,), int64 that hold 32 bits; return the result."""
    values = {"$1": register}
    for name, into, one, other in re.findall(r"(\w+)\.\w+ (\S+), (\S+), (\S+);", asm):
        left, right = (values.get(x, number(x)) for x in (one, other))
        match name:
            case "shl":
                values[into] = (left << right) & 0xFFFFFFFF
            case "shr":
                values[into] = left >> right
            case "and":
                values[into] = left & right
            case "or":
                values[into] = left | right
    return values["$0"]


@DTYPES
@pytest.mark.parametrize("neighbour", [0, 0xFFFF, 0x5AA5])
@pytest.mark.parametrize("is_second", [False, True])
def test_two_in_a_register_do_not_touch(
    dtype: torch.dtype, neighbour: int, is_second: bool
) -> None:
    """Keep two numbers in one register separate.

    The device's instructions are emulated here, since the interpreter has none.
    """
    mine, other = (16, 0) if is_second else (0, 16)
    register = (PAIRS.long() << mine) | (neighbour << other)
    for which, wanted in (("LOW", LOW), ("HIGH", HIGH)):
        asm = getattr(fp8_pairs, f"{which}_{str(dtype).removeprefix('torch.').upper()}").value
        got = (run(asm, register) >> mine) & 0xFFFF
        assert same(got.to(torch.int32).to(torch.int16), dtype, wanted)


def test_pairs_are_of_numbers_in_fp8_for_queries_of_16_bits() -> None:
    kv = torch.zeros(1, 2, 1, 16, 16)
    for dtype, pairs in ((torch.bfloat16, 1), (torch.float16, 1), (torch.float32, 0)):
        assert pairs_of(torch.zeros(1, dtype=dtype), kv.to(E4M3)) == pairs
        assert pairs_of(torch.zeros(1, dtype=dtype), kv.to(dtype)) == 0
