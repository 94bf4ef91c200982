"""The dense families that differ from Llama only in a few config fields.

SmolLM3   some layers without rope
Seed-OSS  another config field for the output's bias
CWM       windows in three of four layers
OLMo 2    norms after attention and MLP, and head norms of all heads together
OLMo 3    as OLMo 2, with windows, and scaled rope in layers without a window
EXAONE 4  norms after attention and MLP, head norms; if some layers have windows, the other layers
          have no rope
"""

from __future__ import annotations

from typing import Any

from engine.models.architectures.dense.llama import Llama, LlamaFields, Ropes, usual_rope
from engine.models.architectures.fields.rope_fields import PositiveFloat, parse_rope
from engine.models.architectures.fields.windows import (
    FULL,
    SLIDING,
    USUAL_WINDOW,
    WindowFields,
    Windows,
    one_full_in,
    windows_of,
)
from engine.models.config import Positive
from engine.models.errors import BadConfig, UnsupportedModel
from engine.models.layers.rope import RopeConfig
from engine.models.layers.sandwich import PostNormLayerConfig

OLMO3_THETA = 5e5
CWM_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1e6,
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


class _SmolLm3(LlamaFields, kw_only=True):
    tie_word_embeddings: bool = True
    num_key_value_heads: Positive | None = 4
    # One entry per layer: 1 if the layer has rope, despite the name.
    no_rope_layers: list[int] | None = None
    no_rope_layer_interval: Positive = 4

    @property
    def rotated(self) -> list[bool]:
        count, interval = self.num_hidden_layers, self.no_rope_layer_interval
        if self.no_rope_layers is None:
            return [(index + 1) % interval != 0 for index in range(count)]
        if len(self.no_rope_layers) < count:
            raise BadConfig(f"no_rope_layers has {len(self.no_rope_layers)} of {count} layers")
        return [bool(one) for one in self.no_rope_layers[:count]]


def _smollm3_windows(raw: WindowFields) -> Windows:
    assert isinstance(raw, _SmolLm3)
    window = raw.window(None) if raw.use_sliding_window else None
    usual = [FULL if one or window is None else SLIDING for one in raw.rotated]
    return windows_of(raw.layer_types or usual, raw.num_hidden_layers, window)


def _smollm3_ropes(raw: _SmolLm3, rope: RopeConfig) -> Ropes:
    return [rope if one else None for one in raw.rotated]


class _SeedOss(LlamaFields, kw_only=True):
    attention_bias: bool = True
    attention_out_bias: bool = False


class _Wide(LlamaFields, kw_only=True):
    rms_norm_eps: PositiveFloat = 1e-5


class _Exaone4(_Wide, kw_only=True):
    sliding_window_pattern: int | str | None = 4


def _exaone4_windows(raw: WindowFields) -> Windows:
    assert isinstance(raw, _Exaone4)
    count, period = raw.num_hidden_layers, raw.sliding_window_pattern
    usual = [FULL] * count
    if raw.window(USUAL_WINDOW) is None:
        return windows_of(raw.layer_types or usual, count, None)
    if raw.layer_types is None and not (isinstance(period, int) and period > 0):
        raise UnsupportedModel(
            f"sliding_window_pattern {period!r}: without layer_types, served are numbers of layers"
        )
    return one_full_in(period if isinstance(period, int) else 1)(raw)


def _exaone4_ropes(raw: _Exaone4, rope: RopeConfig) -> Ropes:
    if raw.window(USUAL_WINDOW) is None:
        return [rope] * raw.num_hidden_layers
    return [None if window is None else rope for window in _exaone4_windows(raw)]


def _olmo3_rope(raw: LlamaFields) -> dict[str, Any]:
    own = (raw.rope_parameters or {}).get(FULL) or {}
    return {**own, **(raw.rope_scaling or {})}


def _olmo3_ropes(raw: LlamaFields, rope: RopeConfig) -> Ropes:
    own = (raw.rope_parameters or {}).get(SLIDING) or {}
    theta = raw.rope_theta or OLMO3_THETA
    sliding = parse_rope(own, theta, raw.positions)
    return [rope if window is None else sliding for window in _OLMO3_WINDOWS(raw)]


_OLMO3_WINDOWS = one_full_in(4)
SMOLLM3 = Llama(
    "smollm3",
    reads_attention_bias=True,
    reads_mlp_bias=True,
    windows=_smollm3_windows,
    default_theta=2e6,
    fields=_SmolLm3,
    ropes=_smollm3_ropes,
    examples=("SmolLM3 3B",),
)
SEED_OSS = Llama(
    "seed_oss",
    default_head_dim=128,
    reads_attention_bias=True,
    reads_mlp_bias=True,
    fields=_SeedOss,
    output_bias="attention_out_bias",
    examples=("Seed-OSS 36B",),
)
CWM = Llama(
    "cwm",
    default_head_dim=128,
    windows=one_full_in(4, 8192, first=True),
    rope_fields=lambda raw: usual_rope(raw) or CWM_ROPE,
    fields=_Wide,
    examples=("Code World Model 32B",),
)
OLMO2 = Llama(
    "olmo2",
    reads_attention_bias=True,
    qk_norm=True,
    fields=_Wide,
    norms_together=True,
    rounds_once=True,
    layer=PostNormLayerConfig,
    examples=("OLMo 2 1B to 32B",),
)
OLMO3 = Llama(
    "olmo3",
    reads_attention_bias=True,
    qk_norm=True,
    windows=_OLMO3_WINDOWS,
    rope_fields=_olmo3_rope,
    default_theta=OLMO3_THETA,
    fields=_Wide,
    norms_together=True,
    rounds_once=True,
    ropes=_olmo3_ropes,
    layer=PostNormLayerConfig,
    examples=("OLMo 3 7B, 32B",),
)
EXAONE4 = Llama(
    "exaone4",
    qk_norm=True,
    windows=_exaone4_windows,
    fields=_Exaone4,
    ropes=_exaone4_ropes,
    layer=PostNormLayerConfig,
    examples=("EXAONE 4.0 1.2B, 32B",),
)
