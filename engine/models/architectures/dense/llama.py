"""Llama, Mistral, Qwen2 and Qwen3. They differ in biases, norms of heads and defaults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from engine.models.architectures.fields.rope_fields import (
    check_rotary,
    parse_query_scaling,
    parse_rope,
    stretched_positions,
)
from engine.models.architectures.fields.windows import (
    WindowFields,
    WindowRule,
    Windows,
    by_layer,
    in_every_layer_by_default,
    in_use,
    no_window,
)
from engine.models.config import (
    MAX_LAYERS,
    ModelConfig,
    ModelSizes,
    Positive,
    check_heads,
    check_silu,
    read_json,
    read_sizes,
    served_dtype,
    text_field,
)
from engine.models.layers.attention import AttentionConfig
from engine.models.layers.layer import LayerConfig
from engine.models.layers.mlp import MlpConfig
from engine.models.layers.norms import RmsNormConfig
from engine.models.layers.rope import RopeConfig
from engine.models.names import PLAIN_NAMES, CheckpointNames

Ropes = Sequence[RopeConfig | None]  # rope of each layer; None: a layer without position encoding


class _DualChunk(msgspec.Struct):
    original_max_position_embeddings: Positive | None = None
    chunk_size: Positive | None = None


class LlamaFields(WindowFields, kw_only=True):
    """The fields of config.json that are read."""

    max_position_embeddings: Positive
    hidden_act: str = "silu"
    rms_norm_eps: Annotated[float, msgspec.Meta(gt=0)] = 1e-6
    rope_theta: Annotated[float, msgspec.Meta(gt=0)] | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    original_max_position_embeddings: Positive | None = None
    partial_rotary_factor: float | None = None
    num_nextn_predict_layers: Annotated[int, msgspec.Meta(ge=0, le=MAX_LAYERS)] | None = None
    dual_chunk_attention_config: _DualChunk | None = None

    @property
    def positions(self) -> int:
        """The number of positions that are served."""
        chunks = self.dual_chunk_attention_config
        most = self.max_position_embeddings
        if chunks is None:
            return most
        return min(most, chunks.original_max_position_embeddings or chunks.chunk_size or most)


def usual_rope(raw: LlamaFields) -> dict[str, Any] | None:
    """Return the rope fields of the config, including the fraction of a head that is rotated."""
    given = raw.rope_parameters or raw.rope_scaling
    if raw.partial_rotary_factor is None:
        return given
    return {"partial_rotary_factor": raw.partial_rotary_factor, **(given or {})}


@dataclass(frozen=True, slots=True)
class Llama:
    """A Llama model, or a family that differs only in these fields. Implements `Architecture`."""

    family: str
    # head size if config.json has none; None: hidden_size / heads
    default_head_dim: int | None = None
    qkv_bias: bool = False  # True: QKV always have biases, even if `attention_bias` is false
    reads_attention_bias: bool = False
    reads_mlp_bias: bool = False
    qk_norm: bool = False
    windows: WindowRule = no_window
    rope_fields: Callable[[LlamaFields], dict[str, Any] | None] = usual_rope
    default_theta: float = 10000.0
    partial_rotary: bool = False
    fields: type[LlamaFields] = LlamaFields
    # Name of the field with whether the output has a bias; None: no bias.
    output_bias: str | None = "attention_bias"
    # Name of the field with whether heads have norms; None: `qk_norm` is used.
    qk_norm_by: str | None = None
    norms_together: bool = False  # True: one norm over all heads together
    rounds_once: bool = False  # True: norms multiply in float32 and round only once
    scales_queries: bool = False
    # Returns the rope of each layer; None: the same rope in all layers.
    ropes: Callable[[Any, RopeConfig], Ropes] | None = None
    layer: type[LayerConfig] = LayerConfig
    # Field of config.json that holds the decoder's config; None: the top level.
    within: str | None = None
    names: CheckpointNames = PLAIN_NAMES
    examples: tuple[str, ...] = ()

    def read(self, path: Path) -> ModelConfig:
        raw = read_json(path, self.fields, self.within)
        check_silu(raw.hidden_act)
        check_heads(raw, self.default_head_dim)
        positions = raw.positions
        scaling = self.rope_fields(raw)
        rope = parse_rope(scaling, raw.rope_theta or self.default_theta, positions)
        if self.scales_queries:
            rope = replace(rope, queries=parse_query_scaling(scaling))
        check_rotary(rope, raw.size_of_head(self.default_head_dim), served=self.partial_rotary)
        positions = stretched_positions(rope, positions)
        layer = self._with_flags(self._layer(raw, rope, raw.rms_norm_eps), raw)
        return ModelConfig(
            family=self.family,
            vocab_size=raw.vocab_size,
            hidden_size=raw.hidden_size,
            layers=self._layers(layer, in_use(self.windows(raw), positions), raw),
            final_norm=layer.norm,
            max_positions=positions,
            tied=raw.tie_word_embeddings,
            dtype=served_dtype(raw),
            names=self._names(raw),
        )

    def sizes(self, path: Path) -> ModelSizes:
        return read_sizes(path)

    def layers(self, path: Path) -> tuple[LayerConfig, ...]:
        # An unserved model is planned as Llama, and may lack other fields.
        if self.windows is no_window:
            sizes = read_sizes(path)
            return (self._layer(sizes),) * sizes.num_hidden_layers
        kind = WindowFields if self.fields is LlamaFields else self.fields
        fields = read_json(path, kind, text_field(path))
        windows = in_use(self.windows(fields), fields.max_position_embeddings)
        return _with_windows(self._layer(fields), windows)

    def _layer(
        self, sizes: ModelSizes, rope: RopeConfig | None = None, eps: float = 1e-6
    ) -> LayerConfig:
        attention = AttentionConfig(
            num_heads=sizes.num_attention_heads,
            num_kv_heads=sizes.num_kv_heads,
            head_dim=sizes.size_of_head(self.default_head_dim),
            rope=rope,
            qkv_bias=self.qkv_bias,
            qk_norm=self.qk_norm,
            norms_together=self.norms_together,
        )
        mlp, norm = (
            MlpConfig(sizes.intermediate_size),
            RmsNormConfig(eps, rounds_once=self.rounds_once),
        )
        return self.layer(sizes.hidden_size, attention, mlp, norm)

    def _with_flags(self, layer: LayerConfig, raw: LlamaFields) -> LayerConfig:
        bias = self.reads_attention_bias and raw.attention_bias
        attention = replace(
            layer.attention,
            qkv_bias=self.qkv_bias or bias,
            output_bias=self.output_bias is not None
            and self.reads_attention_bias
            and getattr(raw, self.output_bias),
            qk_norm=self.qk_norm and (self.qk_norm_by is None or getattr(raw, self.qk_norm_by)),
        )
        mlp = layer.mlp and replace(layer.mlp, bias=self.reads_mlp_bias and raw.mlp_bias)
        return replace(layer, mixer=attention, mlp=mlp)

    def _layers(
        self, layer: LayerConfig, windows: Windows, raw: LlamaFields
    ) -> tuple[LayerConfig, ...]:
        layers = _with_windows(layer, windows)
        rope = layer.attention.rope
        if self.ropes is None or rope is None:
            return layers
        return tuple(
            replace(one, mixer=replace(one.attention, rope=own))
            for one, own in zip(layers, self.ropes(raw, rope), strict=True)
        )

    def _names(self, raw: LlamaFields) -> CheckpointNames:
        layers, drafting = raw.num_hidden_layers, raw.num_nextn_predict_layers or 0
        return replace(self.names, drafting_layers=range(layers, layers + drafting))


def _with_windows(layer: LayerConfig, windows: Windows) -> tuple[LayerConfig, ...]:
    return tuple(
        replace(layer, mixer=replace(layer.attention, window=window)) for window in windows
    )


LLAMA = Llama(
    "llama",
    reads_attention_bias=True,
    reads_mlp_bias=True,
    examples=("Llama 3.3", "DeepSeek R1 Distill Llama", "SmolLM2"),
)
MISTRAL = Llama(
    "mistral", windows=in_every_layer_by_default, examples=("Mistral 7B", "Mistral Nemo")
)
QWEN2 = Llama("qwen2", qkv_bias=True, windows=by_layer, examples=("Qwen2.5", "Qwen2.5 Coder"))
QWEN3 = Llama(
    "qwen3",
    default_head_dim=128,
    reads_attention_bias=True,
    qk_norm=True,
    windows=by_layer,
    examples=("Qwen3 0.6B to 32B",),
)
