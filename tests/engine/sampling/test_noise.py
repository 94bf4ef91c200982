"""Noise is exponentially distributed, and depends only on key and token."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from engine.sampling.planner import noise_key
from kernels.sampling.noise import log_exponential


def keys(*pairs: tuple[int, int]) -> Tensor:
    return torch.tensor([noise_key(*pair) for pair in pairs], dtype=torch.int32)


def noise(num_tokens: int, *pairs: tuple[int, int]) -> Tensor:
    return log_exponential(keys(*pairs), torch.arange(num_tokens, dtype=torch.int32))


def test_noise_is_exponential() -> None:
    drawn = noise(400_000, (7, 3)).exp().flatten()
    assert drawn.mean().item() == pytest.approx(1.0, abs=0.01)
    assert drawn.var().item() == pytest.approx(1.0, abs=0.03)
    for bound in (1e-4, 0.01, 0.1, 1.0, 3.0):
        below = (drawn < bound).float().mean().item()
        sigma = math.sqrt(math.exp(-bound) * (1 - math.exp(-bound)) / len(drawn))
        assert abs(below - (1 - math.exp(-bound))) < 4 * sigma


def test_noise_of_one_token_over_positions_is_exponential_too() -> None:
    drawn = noise(3, *((5, position) for position in range(50_000))).exp()
    assert drawn.mean(0).tolist() == pytest.approx([1.0] * 3, abs=0.03)


@pytest.mark.parametrize("other", [(7, 4), (8, 3), (-7, 3), (7 + (1 << 40), 3)])
def test_noise_of_other_keys_is_unrelated(other: tuple[int, int]) -> None:
    both = noise(50_000, (7, 3), other).exp()
    correlation = torch.corrcoef(both)[0, 1].item()
    assert abs(correlation) < 0.02
    shifted = torch.corrcoef(torch.stack((both[0, 1:], both[1, :-1])))[0, 1].item()
    assert abs(shifted) < 0.02


def test_noise_does_not_depend_on_company_or_order() -> None:
    alone = noise(1000, (7, 3))[0]
    together = noise(1000, (1, 1), (7, 3), (2, 2))[1]
    assert torch.equal(alone, together)
    ids = torch.tensor([[999, 0, 17]], dtype=torch.int32)
    assert torch.equal(log_exponential(keys((7, 3)), ids)[0], alone[ids[0].long()])


def test_noise_is_finite_for_every_word() -> None:
    every_kind = torch.arange(-(2**31), 2**31 - 1, 9973, dtype=torch.int64).to(torch.int32)
    assert bool(log_exponential(keys((0, 0)), every_kind).isfinite().all())


def test_any_integer_is_a_seed() -> None:
    seeds = [0, 1, -1, 2**63, 2**64 - 2, -(2**63)]
    # 2^63 and -2^63 have the same key
    assert len({noise_key(seed, 0) for seed in seeds}) == len(seeds) - 1
    assert noise_key(5, 9) == noise_key(5, 9)
