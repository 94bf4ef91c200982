"""Copies within a pool move whole blocks bit for bit, and change no other block."""

from __future__ import annotations

import pytest
import torch

from kernels.ops import Ops


def make_pool(dtype: torch.dtype = torch.float32, head_dim: int = 32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(7, 3, 2, 2, 16, head_dim, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("head_dim", [16, 80, 128])
def test_copies_whole_blocks_and_no_other(ops: Ops, dtype: torch.dtype, head_dim: int) -> None:
    pool = make_pool(dtype, head_dim)
    expected = pool.clone()
    expected[4], expected[0], expected[6] = pool[1], pool[1], pool[5]
    ops.copy_blocks(pool, torch.tensor([1, 1, 5]), torch.tensor([4, 0, 6]))
    assert torch.equal(pool, expected)


def test_copies_bits_not_numbers(ops: Ops) -> None:
    pool = make_pool(torch.float16)
    bits = torch.arange(-32_768, 32_768, dtype=torch.int32).to(torch.int16)
    block = pool[2].numel()
    pool[2] = bits[:block].view(torch.float16).view(pool[2].shape)
    pool[3] = bits[-block:].view(torch.float16).view(pool[3].shape)
    ops.copy_blocks(pool, torch.tensor([2, 3]), torch.tensor([5, 6]))
    as_bits = pool.view(torch.int16)
    assert torch.equal(as_bits[5], as_bits[2])
    assert torch.equal(as_bits[6], as_bits[3])


def test_no_copies_change_nothing(ops: Ops) -> None:
    pool, none = make_pool(), torch.empty(0, dtype=torch.int64)
    ops.copy_blocks(pool, none, none)
    assert torch.equal(pool, make_pool())
