"""Rotary frequencies, compared with their formulas, and cos/sin tables, compared with
`transformers`.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine.models.architectures.fields.rope_fields import parse_rope, stretched_positions
from engine.models.errors import BadConfig
from engine.models.layers.rope import (
    LinearScaling,
    Llama3Scaling,
    RopeConfig,
    inverse_frequencies,
    rope_table,
)
from tests.engine.rigs.checkpoints import LLAMA3_ROPE

CPU = torch.device("cpu")
LLAMA3 = RopeConfig(500000.0, Llama3Scaling(8.0, 1.0, 4.0, 8192))
QWEN_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": 32768,
}
GPT_OSS_YARN = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def plain_llama3(theta: float, head_dim: int) -> list[float]:
    """Compute Llama 3's published frequency rule, pair by pair."""
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
    got = inverse_frequencies(RopeConfig(10000.0, LinearScaling(4.0)), 8).tolist()
    assert got == pytest.approx([0.25, 0.025, 0.0025, 0.00025])


def test_llama3_scaling_is_the_published_rule() -> None:
    got = inverse_frequencies(LLAMA3, 128).tolist()
    assert got == pytest.approx(plain_llama3(500000.0, 128), rel=1e-5)
    plain = inverse_frequencies(RopeConfig(500000.0), 128).tolist()
    kept = sum(a == b for a, b in zip(got, plain, strict=True))
    assert 0 < kept < len(plain), "some waves are kept and some are slowed"


def test_the_table_has_cosines_left_and_sines_right() -> None:
    table = rope_table(RopeConfig(10000.0), 8, 100, CPU)
    assert table.shape == (100, 8)
    assert table.dtype == torch.float32
    assert table[0].tolist() == [1.0] * 4 + [0.0] * 4
    assert table[7, 1].item() == pytest.approx(math.cos(0.7))
    assert table[7, 5].item() == pytest.approx(math.sin(0.7))


@pytest.mark.parametrize(
    ("rope", "head_dim"),
    [
        ({"rope_type": "default", "rope_theta": 1e4}, 64),
        ({"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0}, 64),
        (LLAMA3_ROPE, 64),
        (QWEN_YARN, 128),
        (GPT_OSS_YARN, 64),
        ({**QWEN_YARN, "beta_fast": 8.0, "beta_slow": 2.0}, 128),
        ({**QWEN_YARN, "attention_factor": 0.5}, 128),
        ({**QWEN_YARN, "mscale": 1.0, "mscale_all_dim": 0.7}, 128),
        ({**QWEN_YARN, "mscale": 0.7}, 128),
        ({**QWEN_YARN, "factor": None}, 128),
        ({**QWEN_YARN, "factor": 1.0}, 128),
        # both frequency bounds are equal
        ({**QWEN_YARN, "original_max_position_embeddings": 4}, 16),
    ],
)
def test_tables_are_those_of_transformers(rope: dict[str, Any], head_dim: int) -> None:
    heads = {"hidden_size": 4 * head_dim, "num_attention_heads": 4, "head_dim": head_dim}
    config = LlamaConfig(max_position_embeddings=131072, rope_parameters=dict(rope), **heads)
    positions = torch.arange(3000)[None]
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), positions)
    read = parse_rope(rope, 1.0, 131072)
    got_cos, got_sin = rope_table(read, head_dim, 3000, CPU).chunk(2, dim=-1)
    torch.testing.assert_close(got_cos, cos[0, :, : head_dim // 2], rtol=0, atol=5e-4)
    torch.testing.assert_close(got_sin, sin[0, :, : head_dim // 2], rtol=0, atol=5e-4)
    frequencies = LlamaRotaryEmbedding(config).inv_freq
    torch.testing.assert_close(inverse_frequencies(read, head_dim), frequencies, rtol=3e-6, atol=0)


def test_what_cosines_are_multiplied_by_may_be_given_in_two_ways() -> None:
    """Read the factor of cosines from either field.

    `attn_factor` is a multiplier; DeepSeek-R1-0528-Qwen3-8B sets it so that the product is 1.
    """
    usual = 0.1 * math.log(4.0) + 1.0
    assert parse_rope(QWEN_YARN, 1.0, 40960).attention_factor == pytest.approx(usual)
    of_that = parse_rope({**QWEN_YARN, "attn_factor": 0.8782488562869419}, 1.0, 131072)
    assert of_that.attention_factor == pytest.approx(1.0)
    alone = {**QWEN_YARN, "attention_factor": 0.5, "attn_factor": 3.0}
    assert parse_rope(alone, 1.0, 40960).attention_factor == 0.5


def test_yarn_serves_the_context_that_it_stretches() -> None:
    assert stretched_positions(parse_rope(QWEN_YARN, 1.0, 40960), 40960) == 131072
    assert stretched_positions(parse_rope(QWEN_YARN, 1.0, 200000), 200000) == 200000
    linear = {"rope_type": "linear", "factor": 4.0}
    assert stretched_positions(parse_rope(linear, 1e4, 4096), 4096) == 4096


@pytest.mark.parametrize(
    ("rope", "complaint"),
    [
        ({**QWEN_YARN, "beta_fast": 1.0, "beta_slow": 2.0}, "beta_fast"),
        ({**QWEN_YARN, "rope_theta": 1.0}, "rope_theta 1.0: with YaRN"),
        ({**QWEN_YARN, "factor": -1.0}, "factor"),
        (
            {
                "rope_type": "longrope",
                "short_factor": [1.0],
                "long_factor": [1.0],
                "original_max_position_embeddings": 1,
            },
            "original_max_position_embeddings",
        ),
    ],
)
def test_what_no_rope_can_be_made_of_is_named(rope: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadConfig, match=complaint):
        parse_rope(rope, 1e4, 4096)
    assert parse_rope({**QWEN_YARN, "beta_fast": 2.0}, 1.0, 4096).theta == 1e6
