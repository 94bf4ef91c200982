"""Merged partial outputs equal the output of undivided attention."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from kernels.attention import merge_attention

SPLITS, ROWS, HEADS, DIM = 20, 3, 2, 24
INTERPRETED = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="on CPU tensors in the interpreter only"
)


def draw() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    partial = torch.randn(SPLITS, ROWS, HEADS, DIM, generator=generator)
    return partial, torch.randn(SPLITS, ROWS, HEADS, generator=generator) * 20


def truth(partial: Tensor, lse: Tensor) -> Tensor:
    weights = torch.softmax(lse.double() * torch.log(torch.tensor(2.0)).double(), dim=0)
    return (partial.double() * weights[..., None]).sum(0)


def test_the_reference_is_the_weighted_mean() -> None:
    partial, lse = draw()
    assert torch.allclose(merge_attention.reference(partial, lse).double(), truth(partial, lse))


def test_parts_without_keys_weigh_nothing_and_none_at_all_is_zero() -> None:
    partial, lse = draw()
    lse[3:, 1], lse[:, 2] = -torch.inf, -torch.inf
    partial[3:, 1] = torch.nan
    got = merge_attention.reference(partial, lse)
    assert torch.allclose(got[1].double(), truth(partial[:3, 1:2], lse[:3, 1:2])[0])
    assert not got[2].any()


@INTERPRETED
def test_splits() -> None:
    partial, lse = draw()
    lse[5:, 1] = -torch.inf
    lse[:, 2] = -torch.inf
    out = torch.full((ROWS, HEADS, DIM), torch.nan)
    merge_attention.merge_splits(partial, lse, out)
    assert torch.allclose(out, merge_attention.reference(partial, lse), atol=1e-6)
