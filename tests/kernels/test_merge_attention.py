"""Partial outputs brought together: as if no part had been apart."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from kernels import merge_attention

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


@INTERPRETED
def test_spans_of_two_parts_lie_where_they_say() -> None:
    partial, lse = draw()
    slots, slot_lse = partial.flatten(0, 1), lse.flatten(0, 1)
    spans = torch.tensor(
        [[[0, 3, 2, 0], [1, 3, 1, 0], [2, 3, 17, 0]], [[6, 3, 1, 0], [40, 1, 5, 0], [0, 1, 0, 0]]],
        dtype=torch.int32,
    )
    out = torch.full((ROWS, HEADS, DIM), torch.nan)
    merge_attention.merge_spans(slots, slot_lse, spans, out)
    named = [[0, 3, 6], [1, 40, 41, 42, 43, 44], [2 + 3 * i for i in range(17)]]
    for row, indices in enumerate(named):
        expected = merge_attention.reference(slots[indices], slot_lse[indices])
        assert torch.allclose(out[row], expected, atol=1e-6)


@INTERPRETED
def test_a_row_of_one_part_is_left_as_it_is() -> None:
    partial, lse = draw()
    spans = torch.tensor([[[0, 1, 1, 0], [0, 1, 2, 0], [5, 1, 1, 0]]], dtype=torch.int32)
    out = torch.full((ROWS, HEADS, DIM), 7.0)
    merge_attention.merge_spans(partial.flatten(0, 1), lse.flatten(0, 1), spans, out)
    assert (out[0] == 7).all()
    assert (out[2] == 7).all()
    assert not (out[1] == 7).any()
