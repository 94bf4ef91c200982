"""Penalties by the reference and by the interpreted kernel, compared with a plain version."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.ops import Ops, torch_ops

VOCAB = 9_001  # three chunks, the last of them partly empty
BATCH_SLOTS = 5


def seen_tokens() -> Tensor:
    """Make token counts of five batch slots: without tokens, a prompt, an output, both, and an
    unread one.
    """
    seen = torch.zeros((BATCH_SLOTS, VOCAB), dtype=torch.int32)
    seen[1, [0, 7, VOCAB - 1]] = 1
    seen[2, [7, 4_096]] = torch.tensor([2, 10], dtype=torch.int32)
    seen[3, [7, 8, 9]] = torch.tensor([1, 4, 7], dtype=torch.int32)
    seen[4] = 99
    return seen


def batch(rows: int = 7) -> Tensor:
    return torch.randn((rows, VOCAB), generator=torch.Generator().manual_seed(rows)) * 4


def penalised(ops: Ops, logits: Tensor, batch_slots: list[int], strengths: Tensor) -> Tensor:
    """Penalise the logits of these batch slots' tokens, in rows 1, 2, 3, ...; return them."""
    rows = torch.arange(1, len(batch_slots) + 1)
    left = logits.clone()
    ops.penalise(left, rows, torch.tensor(batch_slots), seen_tokens(), *strengths)
    return left


def strengths_of(count: int, presence: float, frequency: float, repetition: float) -> Tensor:
    return torch.tensor([[presence] * count, [frequency] * count, [repetition] * count])


def test_a_token_in_the_prompt_is_repeated_and_no_more(ops: Ops) -> None:
    logits = batch()
    logits[1, 7], logits[1, 0] = 3.0, -3.0
    left = penalised(ops, logits, [1], strengths_of(1, 1.0, 1.0, 1.5))
    assert left[1, [7, 0]].tolist() == [2.0, -4.5]
    changed = (left != logits).nonzero().tolist()
    assert changed == [[1, 0], [1, 7], [1, VOCAB - 1]]


def test_a_token_in_the_output_is_lowered_by_its_count(ops: Ops) -> None:
    logits = batch()
    left = penalised(ops, logits, [2], strengths_of(1, 0.5, 0.25, 1.0))
    assert left[1, 7] == logits[1, 7] - 0.25 - 0.5
    assert left[1, 4_096] == logits[1, 4_096] - 1.25 - 0.5
    assert (left != logits).nonzero().tolist() == [[1, 7], [1, 4_096]]


def test_a_token_in_both_is_repeated_once(ops: Ops) -> None:
    logits = batch()
    logits[1, 9] = 6.0
    left = penalised(ops, logits, [3], strengths_of(1, 0.0, 1.0, 2.0))
    assert left[1, 9] == 6.0 / 2 - 3


@pytest.mark.parametrize("values", [(0.3, 0.7, 1.3), (-1.9, -0.1, 0.01), (0.0, 1e30, 1e-3)])
def test_both_ways_give_the_same_bits(ops: Ops, values: tuple[float, float, float]) -> None:
    logits, batch_slots = batch(), [3, 0, 2, 1]
    strengths = strengths_of(len(batch_slots), *values)
    expected = penalised(torch_ops(), logits, batch_slots, strengths)
    assert not torch.equal(expected, logits)
    assert torch.equal(penalised(ops, logits, batch_slots, strengths), expected)
