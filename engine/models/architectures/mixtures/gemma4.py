"""Gemma 4, and the text model of a multimodal Gemma 4.

Layers without a window have heads of another size, and may use one projection for both keys and
values. The last layers may read the KV of an earlier layer of the same type. In small models, each
layer has an additional input (`layer_inputs`). 26B-A4B has experts in addition to the MLPs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from engine.models.architectures.dense.gemma import ACTIVATION
from engine.models.architectures.fields.rope_fields import (
    PositiveFloat,
    check_rotary,
    parse_rope_by_type,
)
from engine.models.architectures.fields.windows import (
    FULL,
    SLIDING,
    WindowFields,
    by_type,
    windows_of,
)
from engine.models.architectures.mixtures.mixture_model import check_experts
from engine.models.config import (
    TEXT,
    ExpertCount,
    LayerCount,
    ModelConfig,
    ModelSizes,
    Positive,
    check_heads,
    check_value,
    read_json,
    served_dtype,
)
from engine.models.errors import BadConfig, UnsupportedModel
from engine.models.layers.attention import AttentionConfig
from engine.models.layers.gemma4 import Gemma4LayerConfig
from engine.models.layers.layer import LayerConfig
from engine.models.layers.layer_inputs import LayerInputsConfig
from engine.models.layers.mixture import MixtureConfig, SharedExpertConfig
from engine.models.layers.mlp import MlpConfig
from engine.models.layers.norms import RmsNormConfig
from engine.models.layers.rope import RopeConfig
from engine.models.names import CheckpointNames
from kernels.norms.gate import GELU_TANH

PERIOD = 6  # by default, one layer of each group of this size has no window
THETAS = {FULL: 1_000_000.0, SLIDING: 10_000.0}
ROPE_OF_FULL = {"rope_type": "proportional", "partial_rotary_factor": 0.25}
Count = Annotated[int, msgspec.Meta(ge=0)]


class _Heads(msgspec.Struct):
    """The number and size of heads in a layer whose heads differ from those of most layers."""

    head_dim: Positive | None = None
    num_key_value_heads: Positive | None = None


class _Fields(WindowFields, kw_only=True):
    """The fields of config.json, with the defaults of `transformers`."""

    vocab_size: Positive = 262_144
    hidden_size: Positive = 2304
    intermediate_size: Positive = 9216
    num_hidden_layers: LayerCount = 30
    num_attention_heads: Positive = 8
    num_key_value_heads: Positive | None = 4
    head_dim: Positive | None = 256
    tie_word_embeddings: bool = True
    max_position_embeddings: Positive = 131_072
    sliding_window: int | msgspec.UnsetType | None = 512
    hidden_activation: str = ACTIVATION
    rms_norm_eps: PositiveFloat = 1e-6
    rope_parameters: dict[str, Any] | None = None
    attention_bias: bool = False
    final_logit_softcapping: PositiveFloat | None = None
    use_bidirectional_attention: str | bool | None = None
    global_head_dim: Positive = 512
    num_global_key_value_heads: Positive | None = None
    per_layer_config: dict[str, _Heads] | None = None
    attention_k_eq_v: bool = False
    num_kv_shared_layers: Count = 0
    use_double_wide_mlp: bool = False
    vocab_size_per_layer_input: Positive = 262_144
    hidden_size_per_layer_input: Count | None = 256
    enable_moe_block: bool = False
    num_experts: ExpertCount | None = None
    top_k_experts: Positive | None = None
    moe_intermediate_size: Positive | None = None

    @property
    def types(self) -> list[str]:
        """The type of each layer. The last layer never has a window, even if the file says so."""
        count = self.num_hidden_layers
        usual = [SLIDING if (index + 1) % PERIOD else FULL for index in range(count)]
        return [*(self.layer_types or usual)[:-1], FULL]

    @property
    def first_sharing(self) -> int:
        return self.num_hidden_layers - self.num_kv_shared_layers

    def heads(self, index: int) -> tuple[int, int]:
        own = _Heads()
        if self.per_layer_config is not None:
            given = self.per_layer_config.items()
            own = next((heads for name, heads in given if is_number(name, index)), own)
        elif self.types[index] == FULL:
            own = _Heads(
                self.global_head_dim,
                self.num_global_key_value_heads if self.attention_k_eq_v else None,
            )
        return own.num_key_value_heads or self.num_kv_heads, own.head_dim or self.size_of_head()

    def kv_of(self, index: int) -> int | None:
        if index < self.first_sharing:
            return None
        kind, before = self.types[index], self.types[: max(self.first_sharing, 0)]
        if kind not in before:
            raise BadConfig(
                f"num_kv_shared_layers {self.num_kv_shared_layers}: no layer before them is of "
                f"type {kind!r}"
            )
        return len(before) - 1 - before[::-1].index(kind)

    @property
    def layer_inputs(self) -> LayerInputsConfig | None:
        if not self.hidden_size_per_layer_input:
            return None
        return LayerInputsConfig(
            self.vocab_size_per_layer_input,
            self.hidden_size,
            self.num_hidden_layers,
            self.hidden_size_per_layer_input,
            self.norm,
        )

    @property
    def layer_input_weights(self) -> int:
        return 0 if self.layer_inputs is None else self.layer_inputs.num_weights

    @property
    def norm(self) -> RmsNormConfig:
        return RmsNormConfig(self.rms_norm_eps, rounds_once=True)


class _Unified(_Fields, kw_only=True):
    """The config fields of the 12B model, which has no separate encoders of images and sound."""

    max_position_embeddings: Positive = 262_144
    sliding_window: int | msgspec.UnsetType | None = 1024
    hidden_size_per_layer_input: Count | None = 0


def is_number(name: str, index: int) -> bool:
    """Return whether a key of `per_layer_config` is the number `index`, even with leading zeros."""
    return name.isdecimal() and name.lstrip("0") == str(index).lstrip("0")


@dataclass(frozen=True, slots=True)
class Gemma4:
    """A Gemma 4 architecture. Implements `Architecture`."""

    family: str
    fields: type[_Fields] = _Fields
    # Field of config.json that holds the decoder's config; None: the top level.
    within: str | None = None
    prefixes: tuple[tuple[str, str], ...] = ()
    examples: tuple[str, ...] = ()

    def read(self, path: Path) -> ModelConfig:
        raw = read_json(path, self.fields, self.within)
        _refuse_unsupported(raw)
        check_heads(raw)
        ropes = _ropes(raw)
        return ModelConfig(
            family=self.family,
            vocab_size=raw.vocab_size,
            hidden_size=raw.hidden_size,
            layers=_layers(raw, ropes),
            final_norm=raw.norm,
            max_positions=raw.max_position_embeddings,
            tied=raw.tie_word_embeddings,
            dtype=served_dtype(raw),
            names=self._names(raw),
            embedding_scale=raw.hidden_size**0.5,
            rounds_embedding_scale=True,
            logits_softcap=raw.final_logit_softcapping,
            layer_inputs=raw.layer_inputs,
        )

    def sizes(self, path: Path) -> ModelSizes:
        return read_json(path, self.fields, self.within)

    def layers(self, path: Path) -> tuple[LayerConfig, ...]:
        return _layers(read_json(path, self.fields, self.within), {})

    def _names(self, raw: _Fields) -> CheckpointNames:
        return CheckpointNames(
            self.prefixes,
            endings=((".router.scale", ".router.norm.weight"),),
            sharing_layers=range(raw.first_sharing, raw.num_hidden_layers),
            stacked_experts=(raw.num_experts or 0) if raw.enable_moe_block else 0,
        )


def _ropes(raw: _Fields) -> dict[str, RopeConfig]:
    parameters = {FULL: ROPE_OF_FULL} if raw.rope_parameters is None else raw.rope_parameters
    return parse_rope_by_type(parameters, THETAS, raw.max_position_embeddings)


def _layers(raw: _Fields, ropes: dict[str, RopeConfig]) -> tuple[Gemma4LayerConfig, ...]:
    count, types = raw.num_hidden_layers, raw.types
    windows = windows_of(types, count, raw.window(None))
    by_layer = by_type(types, count, {kind: ropes.get(kind) for kind in (FULL, SLIDING)})
    return tuple(
        Gemma4LayerConfig(
            raw.hidden_size,
            _attention(raw, index, by_layer[index], windows[index]),
            _mlp(raw, index),
            raw.norm,
            raw.hidden_size_per_layer_input or 0,
        )
        for index in range(count)
    )


def _attention(
    raw: _Fields, index: int, rope: RopeConfig | None, window: int | None
) -> AttentionConfig:
    kv_heads, head_dim = raw.heads(index)
    if head_dim % 2 or raw.num_attention_heads % kv_heads:
        raise BadConfig(
            f"layer {index} has {kv_heads} KV heads of {head_dim}, of {raw.num_attention_heads} "
            "query heads"
        )
    if rope is not None:
        check_rotary(rope, head_dim)
    return AttentionConfig(
        num_heads=raw.num_attention_heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rope=rope,
        qkv_bias=raw.attention_bias,
        output_bias=raw.attention_bias,
        qk_norm=True,
        window=window,
        scale=1.0,
        norms_values=True,
        values_of_keys=raw.attention_k_eq_v and window is None,
        kv_of=raw.kv_of(index),
    )


def _mlp(raw: _Fields, index: int) -> MlpConfig | MixtureConfig:
    wide = raw.use_double_wide_mlp and index >= raw.first_sharing
    mlp = MlpConfig(raw.intermediate_size * (2 if wide else 1), gate=GELU_TANH)
    if not raw.enable_moe_block:
        return mlp
    sizes = raw.moe_intermediate_size, raw.num_experts, raw.top_k_experts
    size, experts, top_k = sizes
    if size is None or experts is None or top_k is None:
        raise BadConfig(
            "enable_moe_block without moe_intermediate_size, num_experts, top_k_experts"
        )
    return check_experts(
        MixtureConfig(
            size,
            experts,
            top_k,
            renormalise=True,
            place="",
            gate=GELU_TANH,
            router="router.proj",
            shared=SharedExpertConfig(mlp, weighted=False),
            expert_scales="router.per_expert_scale",
        )
    )


def _refuse_unsupported(raw: _Fields) -> None:
    check_value("hidden_activation", raw.hidden_activation, ACTIVATION)
    if raw.use_bidirectional_attention not in (None, False, "vision"):
        raise UnsupportedModel(
            f"use_bidirectional_attention {raw.use_bidirectional_attention!r}: served are models "
            "that answer, where a token of text sees none after it"
        )
    if raw.layer_inputs is not None and raw.vocab_size_per_layer_input < raw.vocab_size:
        raise BadConfig(
            f"vocab_size_per_layer_input {raw.vocab_size_per_layer_input} is less than vocab_size "
            f"{raw.vocab_size}"
        )
    for name in raw.per_layer_config or ():
        if not any(is_number(name, index) for index in range(raw.num_hidden_layers)):
            raise BadConfig(f"per_layer_config has {name!r}, which is no layer's number")


GEMMA4 = Gemma4("gemma4", examples=("Gemma 4 E2B, E4B, 26B-A4B, 31B",))
GEMMA4_UNIFIED = Gemma4("gemma4", _Unified, examples=("Gemma 4 12B",))
SEEING = (("model.language_model.", "model."), ("language_model.model.", "model."))
# The decoder of a multimodal model. The tensors of its encoders are not loaded.
GEMMA4_SEEING = replace(GEMMA4, within=TEXT, prefixes=SEEING)
GEMMA4_UNIFIED_SEEING = replace(GEMMA4_UNIFIED, within=TEXT, prefixes=SEEING)
