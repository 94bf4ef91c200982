"""Qwen3-Next and Qwen3.5: Gated DeltaNet in most layers, gated attention in the other layers.

Norms multiply by 1 + weight, rope rotates a quarter of each head, and mixtures have a shared
expert. Only the decoder of a vision model is served. For text, its rope is the same as ordinary
rope. Qwen3.6 and 3.8 have the architectures of Qwen3.5.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from engine.models.architectures.fields.rope_fields import (
    PositiveFloat,
    check_rotary,
    parse_rope,
    stretched_positions,
)
from engine.models.architectures.fields.windows import FULL, by_type
from engine.models.architectures.mixtures.mixture_model import check_experts
from engine.models.config import (
    TEXT,
    LayerCount,
    ModelConfig,
    ModelSizes,
    Positive,
    check_heads,
    check_silu,
    read_json,
    served_dtype,
)
from engine.models.errors import BadConfig, UnsupportedModel
from engine.models.layers.attention import AttentionConfig
from engine.models.layers.delta_net import DeltaNetConfig
from engine.models.layers.draft_head import OF_QWEN, DraftHeadConfig
from engine.models.layers.layer import LayerConfig
from engine.models.layers.mixture import MixtureConfig, SharedExpertConfig
from engine.models.layers.mlp import MlpConfig
from engine.models.layers.norms import RmsNormConfig
from engine.models.layers.rope import RopeConfig
from engine.models.names import CheckpointNames

LINEAR = "linear_attention"
Experts = Annotated[int, msgspec.Meta(ge=0, le=4096)]  # 0: all MLPs are dense
ROTATED = 0.25


class _Raw(ModelSizes, kw_only=True):
    """The fields of config.json, with the defaults of `transformers`."""

    vocab_size: Positive = 248320
    hidden_size: Positive = 4096
    intermediate_size: Positive = 12288
    num_hidden_layers: LayerCount = 32
    num_attention_heads: Positive = 16
    num_key_value_heads: Positive | None = 4
    head_dim: Positive | None = 256
    max_position_embeddings: Positive = 32768
    hidden_act: str = "silu"
    rms_norm_eps: PositiveFloat = 1e-6
    rope_theta: PositiveFloat = 10000.0
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    partial_rotary_factor: float | None = None
    attention_bias: bool = False
    attn_output_gate: bool = True
    layer_types: list[str] | None = None
    full_attention_interval: Positive = 4
    linear_conv_kernel_dim: Positive = 4
    linear_key_head_dim: Positive = 128
    linear_value_head_dim: Positive = 128
    linear_num_key_heads: Positive = 16
    linear_num_value_heads: Positive = 32
    moe_intermediate_size: Positive = 512
    shared_expert_intermediate_size: Positive = 512
    num_experts: Experts = 0
    num_experts_per_tok: Positive = 8
    norm_topk_prob: bool = True
    decoder_sparse_step: Positive = 1
    mlp_only_layers: list[int] | None = None
    mtp_num_hidden_layers: Annotated[int, msgspec.Meta(ge=0, le=16)] = 0


class _Next(_Raw, kw_only=True):
    vocab_size: Positive = 151936
    hidden_size: Positive = 2048
    intermediate_size: Positive = 5632
    num_hidden_layers: LayerCount = 48
    num_key_value_heads: Positive | None = 2
    num_experts: Experts = 512
    num_experts_per_tok: Positive = 10
    mtp_num_hidden_layers: Annotated[int, msgspec.Meta(ge=0, le=16)] = 1


class _Sparse(_Raw, kw_only=True):
    hidden_size: Positive = 2048
    num_hidden_layers: LayerCount = 40
    num_key_value_heads: Positive | None = 2
    num_experts: Experts = 256


class _Whole(msgspec.Struct):
    tie_word_embeddings: bool | None = None


@dataclass(frozen=True, slots=True)
class QwenHybrid:
    """A Qwen architecture with recurrent layers. Implements `Architecture`."""

    family: str
    fields: type[_Raw]
    joined: bool = False  # True: the files have one projection for a DeltaNet, ordered by head
    # Field of config.json that holds the decoder's config; None: the top level.
    within: str | None = None
    examples: tuple[str, ...] = ()

    def read(self, path: Path) -> ModelConfig:
        raw = self._raw(path)
        _refuse_unsupported(raw)
        check_heads(raw)
        rope = parse_rope(_rope_fields(raw), raw.rope_theta, raw.max_position_embeddings)
        check_rotary(rope, raw.size_of_head(), served=True)
        layers = self._layers(raw, rope)
        of_head = "mtp.layers.0.", f"model.layers.{len(layers)}."
        return ModelConfig(
            family=self.family,
            vocab_size=raw.vocab_size,
            hidden_size=raw.hidden_size,
            layers=layers,
            final_norm=_norm(raw),
            max_positions=stretched_positions(rope, raw.max_position_embeddings),
            tied=raw.tie_word_embeddings,
            dtype=served_dtype(raw),
            names=CheckpointNames(
                (("model.language_model.", "model."), ("language_model.", ""), of_head),
                drafting_layers=range(len(layers), len(layers) + 1),
                stacked_experts=raw.num_experts,
            ),
            possible_head=_draft_head(raw, layers, rope),
        )

    def sizes(self, path: Path) -> ModelSizes:
        return self._raw(path)

    def layers(self, path: Path) -> tuple[LayerConfig, ...]:
        return self._layers(self._raw(path), None)

    def _raw(self, path: Path) -> _Raw:
        """Read the fields. A top-level `tie_word_embeddings` overrides the one in `within`."""
        raw = read_json(path, self.fields, self.within)
        tied = read_json(path, _Whole).tie_word_embeddings
        return raw if tied is None else msgspec.structs.replace(raw, tie_word_embeddings=tied)

    def _layers(self, raw: _Raw, rope: RopeConfig | None) -> tuple[LayerConfig, ...]:
        count, interval = raw.num_hidden_layers, raw.full_attention_interval
        usual = [LINEAR if (index + 1) % interval else FULL for index in range(count)]
        kinds: dict[str, AttentionConfig | DeltaNetConfig] = {
            FULL: _attention(raw, rope),
            LINEAR: self._delta_net(raw),
        }
        mixers = by_type(raw.layer_types or usual, count, kinds)
        mlp, mixture = MlpConfig(raw.intermediate_size), _mixture(raw)
        dense = frozenset(raw.mlp_only_layers or ())
        return tuple(
            LayerConfig(
                raw.hidden_size,
                mixer,
                mlp
                if mixture is None or index in dense or (index + 1) % raw.decoder_sparse_step
                else mixture,
                _norm(raw),
            )
            for index, mixer in enumerate(mixers)
        )

    def _delta_net(self, raw: _Raw) -> DeltaNetConfig:
        key_heads, value_heads = raw.linear_num_key_heads, raw.linear_num_value_heads
        if value_heads % key_heads:
            raise BadConfig(
                f"linear_num_value_heads {value_heads} is no multiple of "
                f"linear_num_key_heads {key_heads}"
            )
        return DeltaNetConfig(
            key_heads=key_heads,
            value_heads=value_heads,
            key_dim=raw.linear_key_head_dim,
            value_dim=raw.linear_value_head_dim,
            conv_width=raw.linear_conv_kernel_dim,
            joined=self.joined,
        )


def _attention(raw: _Raw, rope: RopeConfig | None) -> AttentionConfig:
    return AttentionConfig(
        num_heads=raw.num_attention_heads,
        num_kv_heads=raw.num_kv_heads,
        head_dim=raw.size_of_head(),
        rope=rope,
        qkv_bias=raw.attention_bias,
        output_bias=raw.attention_bias,
        qk_norm=True,
        gated=True,
    )


def _draft_head(
    raw: _Raw, layers: tuple[LayerConfig, ...], rope: RopeConfig | None
) -> DraftHeadConfig | None:
    if raw.mtp_num_hidden_layers != 1:
        return None
    layer = replace(layers[-1], mixer=_attention(raw, rope))
    return DraftHeadConfig(layer, _norm(raw), OF_QWEN)


def _mixture(raw: _Raw) -> MixtureConfig | None:
    if not raw.num_experts:
        return None
    return check_experts(
        MixtureConfig(
            raw.moe_intermediate_size,
            raw.num_experts,
            raw.num_experts_per_tok,
            raw.norm_topk_prob,
            shared=SharedExpertConfig(
                MlpConfig(raw.shared_expert_intermediate_size, place="shared_expert.")
            ),
        )
    )


def _norm(raw: _Raw) -> RmsNormConfig:
    return RmsNormConfig(raw.rms_norm_eps, one_plus=True)


def _rope_fields(raw: _Raw) -> dict[str, Any]:
    usual = ROTATED if raw.partial_rotary_factor is None else raw.partial_rotary_factor
    return {"partial_rotary_factor": usual, **(raw.rope_parameters or raw.rope_scaling or {})}


def _refuse_unsupported(raw: _Raw) -> None:
    check_silu(raw.hidden_act)
    if not raw.attn_output_gate:
        raise UnsupportedModel("attn_output_gate false: served is true")


QWEN3_NEXT = QwenHybrid(
    "qwen3_next", _Next, joined=True, examples=("Qwen3-Next 80B-A3B", "Qwen3 Coder Next")
)
QWEN3_5 = QwenHybrid("qwen3_5", _Raw, examples=("Qwen3.5, its text model",))
QWEN3_5_MOE = QwenHybrid("qwen3_5_moe", _Sparse, examples=("Qwen3.5-MoE, its text model",))
# The decoders of multimodal models. The vision tensors are not loaded.
QWEN3_5_SEEING = replace(QWEN3_5, within=TEXT, examples=("Qwen3.5 0.8B to 27B", "Qwen3.6 27B"))
QWEN3_5_MOE_SEEING = replace(
    QWEN3_5_MOE, within=TEXT, examples=("Qwen3.5 35B-A3B to 397B-A17B", "Qwen3.6 35B-A3B")
)
