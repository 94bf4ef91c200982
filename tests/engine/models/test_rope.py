"""Rotary frequencies against the formulas."""

from __future__ import annotations

import math

import pytest
import torch

from engine.models.rope import RopeConfig, inverse_frequencies, rope_table

LLAMA3 = RopeConfig(500000.0, "llama3", 8.0, 1.0, 4.0, 8192)


def plain_llama3(theta: float, head_dim: int) -> list[float]:
    """The published rule, pair by pair."""
    frequencies = []
    for pair in range(head_dim // 2):
        frequency = theta ** (-2 * pair / head_dim)
        wavelength = 2 * math.pi / frequency
        if wavelength > 8192 / 1.0:
            frequency /= 8.0
        elif wavelength > 8192 / 4.0:
            smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
            frequency = (1 - smooth) * frequency / 8.0 + smooth * frequency
        frequencies.append(frequency)
    return frequencies


def test_plain_frequencies_fall_from_one() -> None:
    got = inverse_frequencies(RopeConfig(10000.0), 8).tolist()
    assert got == pytest.approx([1.0, 0.1, 0.01, 0.001])


def test_linear_scaling_divides() -> None:
    got = inverse_frequencies(RopeConfig(10000.0, "linear", 4.0), 8).tolist()
    assert got == pytest.approx([0.25, 0.025, 0.0025, 0.00025])


def test_llama3_scaling_is_the_published_rule() -> None:
    got = inverse_frequencies(LLAMA3, 128).tolist()
    assert got == pytest.approx(plain_llama3(500000.0, 128), rel=1e-5)
    plain = inverse_frequencies(RopeConfig(500000.0), 128).tolist()
    kept = sum(a == b for a, b in zip(got, plain, strict=True))
    assert 0 < kept < len(plain), "some waves are kept and some are slowed"


def test_the_table_has_cosines_left_and_sines_right() -> None:
    table = rope_table(RopeConfig(10000.0), 8, 100, torch.device("cpu"))
    assert table.shape == (100, 8)
    assert table.dtype == torch.float32
    assert table[0].tolist() == [1.0] * 4 + [0.0] * 4
    assert table[7, 1].item() == pytest.approx(math.cos(0.7))
    assert table[7, 5].item() == pytest.approx(math.sin(0.7))
