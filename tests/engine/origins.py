"""What a block's bits depend on, and for each part of it another that differs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.fingerprint import BlockOrigin
from engine.model.config import ModelConfig
from engine.model.rope import RopeConfig

MODEL = ModelConfig(
    family="llama",
    vocab_size=300,
    hidden_size=64,
    intermediate_size=96,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    rms_norm_eps=1e-6,
    max_positions=512,
    rope=RopeConfig(10000.0),
    tied=False,
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    qk_norm=False,
    dtype="float32",
    eos_token_ids=(2,),
)
ORIGIN = BlockOrigin(
    weights=b"w",
    model=MODEL,
    tokenizer=b"t",
    weight_dtype="float32",
    kv_dtype="float32",
    block_size=16,
    numerics="cpu-1",
)


def another(value: Any) -> Any:
    """A value of the same type that differs."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, RopeConfig):
        return replace(value, theta=value.theta + 1)
    if isinstance(value, ModelConfig):
        return replace(value, num_layers=value.num_layers + 1)
    return value + (b"x" if isinstance(value, bytes) else "x" if isinstance(value, str) else 1)
