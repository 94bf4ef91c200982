"""gpt-oss: windows in every second layer, sinks, YaRN, experts with biases and a clamped SwiGLU.

The model checkpoints have one tensor for all experts of a layer, in mxfp4 or unquantised.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from engine.models.architectures.fields.rope_fields import (
    PositiveFloat,
    check_rotary,
    parse_rope,
    stretched_positions,
)
from engine.models.architectures.fields.windows import (
    FULL,
    SLIDING,
    WindowFields,
    Windows,
    in_use,
    windows_of,
)
from engine.models.architectures.mixtures.mixture_model import check_experts
from engine.models.config import (
    ExpertCount,
    ModelConfig,
    ModelSizes,
    Positive,
    check_heads,
    check_silu,
    read_json,
    served_dtype,
)
from engine.models.layers.attention import AttentionConfig
from engine.models.layers.layer import LayerConfig
from engine.models.layers.mixture import MixtureConfig
from engine.models.layers.norms import RmsNormConfig
from engine.models.layers.rope import RopeConfig
from kernels.norms.gate import Gate

USUAL_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
EXAMPLES = ("gpt-oss-20b", "gpt-oss-120b")


class _Raw(WindowFields, kw_only=True):
    num_key_value_heads: Positive | None = 8
    head_dim: Positive | None = 64
    max_position_embeddings: Positive = 131072
    sliding_window: int | msgspec.UnsetType | None = 128
    hidden_act: str = "silu"
    rms_norm_eps: PositiveFloat = 1e-5
    rope_theta: PositiveFloat = 150000.0
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    attention_bias: bool = True
    num_local_experts: ExpertCount | None = None
    num_experts: ExpertCount | None = None
    num_experts_per_tok: Positive = 4
    swiglu_alpha: PositiveFloat = 1.702
    swiglu_limit: PositiveFloat = 7.0


@dataclass(frozen=True, slots=True)
class GptOss:
    """The architecture of gpt-oss. Implements `Architecture`."""

    examples: tuple[str, ...] = EXAMPLES

    def read(self, path: Path) -> ModelConfig:
        raw = read_json(path, _Raw)
        check_silu(raw.hidden_act)
        check_heads(raw)
        scaling = raw.rope_parameters or raw.rope_scaling or USUAL_YARN
        rope = parse_rope(scaling, raw.rope_theta, raw.max_position_embeddings)
        check_rotary(rope, raw.size_of_head())
        positions = stretched_positions(rope, raw.max_position_embeddings)
        return ModelConfig(
            family="gpt_oss",
            vocab_size=raw.vocab_size,
            hidden_size=raw.hidden_size,
            layers=_layers(raw, rope, positions),
            final_norm=_norm(raw),
            max_positions=positions,
            tied=raw.tie_word_embeddings,
            dtype=served_dtype(raw),
        )

    def sizes(self, path: Path) -> ModelSizes:
        return read_json(path, _Raw)

    def layers(self, path: Path) -> tuple[LayerConfig, ...]:
        raw = read_json(path, _Raw)
        return _layers(raw, None, raw.max_position_embeddings)


def _layers(raw: _Raw, rope: RopeConfig | None, positions: int) -> tuple[LayerConfig, ...]:
    mixture, norm = _mixture(raw), _norm(raw)
    return tuple(
        LayerConfig(raw.hidden_size, _attention(raw, rope, window), mixture, norm)
        for window in in_use(_windows(raw), positions)
    )


def _windows(raw: _Raw) -> Windows:
    """Return each layer's window. Without `layer_types`, layers 0, 2, 4, ... have windows."""
    layers = raw.num_hidden_layers
    usual = [(SLIDING, FULL)[index % 2] for index in range(layers)]
    return windows_of(raw.layer_types or usual, layers, raw.window(None))


def _attention(raw: _Raw, rope: RopeConfig | None, window: int | None) -> AttentionConfig:
    return AttentionConfig(
        num_heads=raw.num_attention_heads,
        num_kv_heads=raw.num_kv_heads,
        head_dim=raw.size_of_head(),
        rope=rope,
        qkv_bias=raw.attention_bias,
        output_bias=raw.attention_bias,
        window=window,
        sinks=True,
    )


def _mixture(raw: _Raw) -> MixtureConfig:
    return check_experts(
        MixtureConfig(
            raw.intermediate_size,
            raw.num_local_experts or raw.num_experts or 128,
            raw.num_experts_per_tok,
            renormalise=True,
            gate=Gate(raw.swiglu_limit, raw.swiglu_alpha),
            bias=True,
            router="router",
            router_bias=True,
            packed=True,
        )
    )


def _norm(raw: _Raw) -> RmsNormConfig:
    return RmsNormConfig(raw.rms_norm_eps, rounds_once=True)


GPT_OSS = GptOss()
