"""Gemma 2 and 3, and the text model of a multimodal Gemma 3.

Both have four norms in a layer (which multiply by 1 + weight), GeGLU, scaled embeddings, and
windows in most layers. Gemma 2 soft-caps attention scores and logits. Gemma 3 has norms of queries
and keys, and a different rope base in layers with a window.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from engine.models.architectures.fields.rope_fields import (
    PositiveFloat,
    check_rotary,
    parse_rope,
    parse_rope_by_type,
    stretched_positions,
)
from engine.models.architectures.fields.windows import (
    FULL,
    SLIDING,
    WindowFields,
    by_type,
    in_use,
    windows_of,
)
from engine.models.config import (
    TEXT,
    LayerCount,
    ModelConfig,
    ModelSizes,
    Positive,
    check_heads,
    read_json,
    served_dtype,
)
from engine.models.errors import UnsupportedModel
from engine.models.layers.attention import AttentionConfig
from engine.models.layers.layer import LayerConfig
from engine.models.layers.mlp import MlpConfig
from engine.models.layers.norms import RmsNormConfig
from engine.models.layers.rope import RopeConfig
from engine.models.layers.sandwich import SandwichLayerConfig
from engine.models.names import PLAIN_NAMES, CheckpointNames
from kernels.norms.gate import GELU_TANH

ACTIVATION = "gelu_pytorch_tanh"
Ropes = dict[str, RopeConfig]


class _Raw(WindowFields, kw_only=True):
    """The fields of config.json, with the defaults of `transformers`."""

    hidden_size: Positive = 2304
    intermediate_size: Positive = 9216
    num_hidden_layers: LayerCount = 26
    num_attention_heads: Positive = 8
    num_key_value_heads: Positive | None = 4
    head_dim: Positive | None = 256
    tie_word_embeddings: bool = True
    sliding_window: int | msgspec.UnsetType | None = 4096
    hidden_activation: str = ACTIVATION
    rms_norm_eps: PositiveFloat = 1e-6
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    attention_bias: bool = False
    query_pre_attn_scalar: PositiveFloat = 256
    use_bidirectional_attention: bool | None = None


class _Gemma2(_Raw, kw_only=True):
    vocab_size: Positive = 256000
    max_position_embeddings: Positive = 8192
    rope_theta: PositiveFloat = 10000.0
    attn_logit_softcapping: PositiveFloat | None = 50.0
    final_logit_softcapping: PositiveFloat | None = 30.0
    sliding_window_pattern: Positive = 2


class _Gemma3(_Raw, kw_only=True):
    vocab_size: Positive = 262208
    max_position_embeddings: Positive = 131072
    rope_theta: PositiveFloat = 1_000_000.0
    rope_local_base_freq: PositiveFloat = 10000.0
    attn_logit_softcapping: PositiveFloat | None = None
    final_logit_softcapping: PositiveFloat | None = None
    sliding_window_pattern: Positive = 6


_Fields = _Gemma2 | _Gemma3


def _ropes_of_gemma2(raw: _Fields) -> Ropes:
    scaling = raw.rope_parameters or raw.rope_scaling
    rope = parse_rope(scaling, raw.rope_theta, raw.max_position_embeddings)
    return {FULL: rope, SLIDING: rope}


def _ropes_of_gemma3(raw: _Fields) -> Ropes:
    assert isinstance(raw, _Gemma3)
    parameters = dict(raw.rope_parameters or {})
    own = parameters.get(FULL) or {}
    if raw.rope_scaling and isinstance(own, dict):
        # The older field `rope_scaling` describes the rope of layers without a window.
        parameters[FULL] = {**own, **raw.rope_scaling}
    thetas = {FULL: raw.rope_theta, SLIDING: raw.rope_local_base_freq}
    return parse_rope_by_type(parameters, thetas, raw.max_position_embeddings)


@dataclass(frozen=True, slots=True)
class Gemma:
    """A Gemma architecture. Implements `Architecture`."""

    family: str
    fields: type[_Gemma2] | type[_Gemma3]
    ropes: Callable[[_Fields], Ropes]
    qk_norm: bool = False
    caps_scores: bool = False
    # Field of config.json that holds the decoder's config; None: the top level.
    within: str | None = None
    names: CheckpointNames = PLAIN_NAMES
    examples: tuple[str, ...] = ()

    def read(self, path: Path) -> ModelConfig:
        raw = read_json(path, self.fields, self.within)
        self._refuse_unsupported(raw)
        check_heads(raw)
        ropes = self.ropes(raw)
        for rope in ropes.values():
            check_rotary(rope, raw.size_of_head())
        positions = stretched_positions(ropes[FULL], raw.max_position_embeddings)
        return ModelConfig(
            family=self.family,
            vocab_size=raw.vocab_size,
            hidden_size=raw.hidden_size,
            layers=self._layers(raw, ropes, positions),
            final_norm=_norm(raw),
            max_positions=positions,
            tied=raw.tie_word_embeddings,
            dtype=served_dtype(raw),
            names=self.names,
            embedding_scale=raw.hidden_size**0.5,
            rounds_embedding_scale=True,
            logits_softcap=raw.final_logit_softcapping,
        )

    def sizes(self, path: Path) -> ModelSizes:
        return read_json(path, self.fields, self.within)

    def layers(self, path: Path) -> tuple[LayerConfig, ...]:
        raw = read_json(path, self.fields, self.within)
        return self._layers(raw, {}, raw.max_position_embeddings)

    def _layers(self, raw: _Fields, ropes: Ropes, positions: int) -> tuple[LayerConfig, ...]:
        count, pattern = raw.num_hidden_layers, raw.sliding_window_pattern
        usual = [SLIDING if (index + 1) % pattern else FULL for index in range(count)]
        types = raw.layer_types or usual
        windows = in_use(windows_of(types, count, raw.window(None)), positions)
        by_layer = by_type(types, count, {kind: ropes.get(kind) for kind in (FULL, SLIDING)})
        return tuple(
            SandwichLayerConfig(
                raw.hidden_size,
                self._attention(raw, rope, window),
                MlpConfig(raw.intermediate_size, gate=GELU_TANH),
                _norm(raw),
            )
            for rope, window in zip(by_layer, windows, strict=True)
        )

    def _attention(
        self, raw: _Fields, rope: RopeConfig | None, window: int | None
    ) -> AttentionConfig:
        return AttentionConfig(
            num_heads=raw.num_attention_heads,
            num_kv_heads=raw.num_kv_heads,
            head_dim=raw.size_of_head(),
            rope=rope,
            qkv_bias=raw.attention_bias,
            output_bias=raw.attention_bias,
            qk_norm=self.qk_norm,
            window=window,
            softcap=raw.attn_logit_softcapping if self.caps_scores else None,
            scale=raw.query_pre_attn_scalar**-0.5,
        )

    def _refuse_unsupported(self, raw: _Fields) -> None:
        if raw.hidden_activation != ACTIVATION:
            raise UnsupportedModel(
                f"hidden_activation {raw.hidden_activation!r}: only {ACTIVATION!r} is served"
            )
        if raw.use_bidirectional_attention:
            raise UnsupportedModel(
                "use_bidirectional_attention true: served are models that answer, where a token "
                "sees none after it"
            )
        if raw.attn_logit_softcapping is not None and not self.caps_scores:
            raise UnsupportedModel(
                f"attn_logit_softcapping {raw.attn_logit_softcapping}: of {self.family} served is "
                "null"
            )


def _norm(raw: _Fields) -> RmsNormConfig:
    return RmsNormConfig(raw.rms_norm_eps, one_plus=True)


GEMMA2 = Gemma(
    "gemma2", _Gemma2, _ropes_of_gemma2, caps_scores=True, examples=("Gemma 2 2B to 27B",)
)
GEMMA3 = Gemma("gemma3", _Gemma3, _ropes_of_gemma3, qk_norm=True, examples=("Gemma 3 1B",))
# The decoder of a multimodal model. The vision tensors are not loaded.
GEMMA3_SEEING = replace(
    GEMMA3,
    within=TEXT,
    names=CheckpointNames((("language_model.", ""), ("model.language_model.", "model."))),
    examples=("Gemma 3 4B to 27B",),
)
