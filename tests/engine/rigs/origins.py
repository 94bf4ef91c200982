"""The inputs on which a block's bits depend, and a different value for each."""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from typing import Any

from engine.models.config import ModelConfig
from engine.models.layers.attention import AttentionConfig
from engine.models.layers.layer import LayerConfig
from engine.models.layers.mlp import MlpConfig
from engine.models.layers.norms import RmsNormConfig
from engine.models.layers.rope import RopeConfig
from engine.models.weight_formats.plain import PlainFormat
from engine.startup.fingerprint import BlockOrigin
from storage.layouts.kv_layout import KvLayout
from tests.doubles.layouts import alike_layers

ATTENTION = AttentionConfig(num_heads=4, num_kv_heads=2, head_dim=16, rope=RopeConfig(10000.0))
LAYER = LayerConfig(64, ATTENTION, MlpConfig(96), RmsNormConfig(1e-6))
MODEL = ModelConfig(
    family="llama",
    vocab_size=300,
    hidden_size=64,
    layers=(LAYER, LAYER),
    final_norm=RmsNormConfig(1e-6),
    max_positions=512,
    tied=False,
    dtype="float32",
    eos_token_ids=(2,),
)
ORIGIN = BlockOrigin(
    weights=b"w",
    model=MODEL,
    tokenizer=b"t",
    weight_dtype="float32",
    kv=alike_layers(2, 2, head_dim=16, dtype="float32", block_size=16),
    numerics="cpu-1",
)


def attending(**changes: Any) -> ModelConfig:
    """Return the model with these fields of the attention changed in all layers."""
    layer = replace(LAYER, mixer=replace(ATTENTION, **changes))
    return replace(MODEL, layers=(layer, layer))


def another(value: Any) -> Any:
    """Return a different value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, PlainFormat):
        return PlainFormat("other")
    if isinstance(value, RopeConfig):
        return replace(value, theta=value.theta + 1)
    if isinstance(value, ModelConfig):
        return replace(value, vocab_size=value.vocab_size + 1)
    if value is None:
        return 1
    if isinstance(value, KvLayout):
        return replace(value, block_size=value.block_size + 1)
    if isinstance(value, tuple):
        return (*value[:-1], another(value[-1]))
    if is_dataclass(value) and not isinstance(value, type):
        first = next(iter(value.__dataclass_fields__))
        return replace(value, **{first: another(getattr(value, first))})
    return value + (b"x" if isinstance(value, bytes) else "x" if isinstance(value, str) else 1)
