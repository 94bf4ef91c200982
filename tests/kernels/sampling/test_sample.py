"""The reference and the interpreted kernel sample the same tokens, greedily and with noise."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.ops import Ops, torch_ops
from kernels.sampling.noise import log_exponential

VOCAB = 20_000  # ten chunks, the last of them partly empty


def batch(rows: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn((rows, VOCAB), generator=generator) * 3
    temperature = torch.tensor([0.0, 1.0, 0.3, 2.5]).repeat(rows)[:rows]
    keys = torch.randint(-(2**31), 2**31, (rows, 2), generator=generator).int()
    return logits, temperature, keys


def test_greedy_rows_take_the_likeliest_and_drawn_ones_the_best_with_noise(ops: Ops) -> None:
    logits, temperature, keys = batch(6)
    tokens, finite = ops.sample(logits, temperature, keys)
    ids = torch.arange(VOCAB, dtype=torch.int32)
    for row in range(6):
        scores = logits[row]
        if temperature[row] > 0:
            scores = scores / temperature[row] - log_exponential(keys[row : row + 1], ids)[0]
        assert tokens[row] == scores.argmax()
    assert finite.tolist() == [True] * 6
    assert (tokens.dtype, finite.dtype) == (torch.int64, torch.bool)


def test_both_ways_draw_the_same(ops: Ops) -> None:
    logits, temperature, keys = batch(16, seed=3)
    expected, _ = torch_ops().sample(logits, temperature, keys)
    assert torch.equal(ops.sample(logits, temperature, keys)[0], expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_first_of_equals(ops: Ops, dtype: torch.dtype) -> None:
    logits, temperature, keys = batch(1)
    logits = logits.clamp(max=1.0).to(dtype)
    logits[0, [12_345, 9, 17_000]] = 50.0
    assert ops.sample(logits, temperature, keys)[0].tolist() == [9]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_shows_and_spares_the_others(
    ops: Ops, value: float, temperature: float
) -> None:
    logits, _, keys = batch(3)
    heat = torch.full((3,), temperature)
    expected = ops.sample(logits, heat, keys)[0]
    logits[1, 19_999] = value
    tokens, finite = ops.sample(logits, heat, keys)
    assert finite.tolist() == [True, False, True]
    assert tokens[[0, 2]].tolist() == expected[[0, 2]].tolist()
    assert 0 <= int(tokens[1]) < VOCAB
    logits[1] = value
    assert 0 <= int(ops.sample(logits, heat, keys)[0][1]) < VOCAB


def test_a_token_with_minus_infinity_is_never_drawn(ops: Ops) -> None:
    logits, _, keys = batch(8)
    logits[:, 10:] = float("-inf")
    tokens, _ = ops.sample(logits, torch.full((8,), 5.0), keys)
    assert int(tokens.max()) < 10
