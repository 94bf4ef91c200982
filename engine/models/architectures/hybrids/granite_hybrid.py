"""Granite 4.0: Mamba-2 in most layers or in none, shared MLPs, and in some models experts.

Granite 4.0 has the multipliers of earlier Granite models (`mixtures/granite.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from engine.models.architectures.fields.rope_fields import (
    PositiveFloat,
    check_rotary,
    parse_rope,
    stretched_positions,
)
from engine.models.architectures.fields.windows import FULL, by_type
from engine.models.architectures.mixtures.granite import EXPERTS, NAMES, Multipliers
from engine.models.architectures.mixtures.mixture_model import check_experts
from engine.models.config import (
    LayerCount,
    ModelConfig,
    ModelSizes,
    Positive,
    check_heads,
    check_silu,
    read_json,
    served_dtype,
)
from engine.models.errors import BadConfig
from engine.models.layers.attention import AttentionConfig
from engine.models.layers.layer import LayerConfig
from engine.models.layers.mamba import MambaConfig
from engine.models.layers.mixture import MixtureConfig, SharedExpertConfig
from engine.models.layers.mlp import MlpConfig
from engine.models.layers.norms import RmsNormConfig
from engine.models.layers.rope import RopeConfig
from engine.models.names import CheckpointNames

LINEAR = "linear_attention"
# The layer types in files written before `transformers` 5, and the present names.
OLDER_TYPES = {"mamba": LINEAR, "attention": FULL}
Experts = Annotated[int, msgspec.Meta(ge=0, le=4096)]  # 0: only the shared MLP
Limit = Annotated[float, msgspec.Meta(ge=0)]


class _Infinity(msgspec.Struct):
    """An infinite number, in the form in which `transformers` writes it to JSON."""

    number: Literal["Infinity"] = msgspec.field(name="__float__")


class _Raw(ModelSizes, kw_only=True):
    vocab_size: Positive = 32000
    hidden_size: Positive = 4096
    intermediate_size: Positive = 11008
    shared_intermediate_size: Positive = 1024
    num_hidden_layers: LayerCount = 32
    num_attention_heads: Positive = 32
    max_position_embeddings: Positive = 2048
    hidden_act: str = "silu"
    rms_norm_eps: PositiveFloat = 1e-6
    position_embedding_type: Literal["rope", "nope"] | None = None
    rope_theta: PositiveFloat = 10000.0
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    attention_bias: bool = False
    num_local_experts: Experts | None = 8
    num_experts_per_tok: Positive = 2
    layer_types: list[str] | None = None
    layers_block_type: list[str] | None = None
    mamba_n_heads: Positive = 128
    mamba_n_groups: Positive = 1
    mamba_d_state: Positive = 256
    mamba_d_head: Positive | Literal["auto"] = "auto"
    mamba_d_conv: Positive = 4
    mamba_expand: Positive = 2
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    time_step_limit: tuple[Limit, Limit | _Infinity] | None = None

    @property
    def types(self) -> list[str]:
        usual = [LINEAR] * self.num_hidden_layers
        return [
            OLDER_TYPES.get(kind, kind)
            for kind in self.layer_types or self.layers_block_type or usual
        ]


@dataclass(frozen=True, slots=True)
class GraniteHybrid:
    """The architecture of Granite 4.0. Implements `Architecture`."""

    examples: tuple[str, ...]

    def read(self, path: Path) -> ModelConfig:
        raw = read_json(path, _Raw)
        check_silu(raw.hidden_act)
        check_heads(raw)
        rope = _rope(raw)
        positions = raw.max_position_embeddings
        model = ModelConfig(
            family="granite_hybrid",
            vocab_size=raw.vocab_size,
            hidden_size=raw.hidden_size,
            layers=_layers(raw, rope),
            final_norm=_norm(raw),
            max_positions=positions if rope is None else stretched_positions(rope, positions),
            tied=raw.tie_word_embeddings,
            dtype=served_dtype(raw),
            names=_names(raw),
        )
        return read_json(path, Multipliers).multiply(model)

    def sizes(self, path: Path) -> ModelSizes:
        return read_json(path, _Raw)

    def layers(self, path: Path) -> tuple[LayerConfig, ...]:
        return _layers(read_json(path, _Raw), None)


def _names(raw: _Raw) -> CheckpointNames:
    return replace(
        NAMES,
        merged=(
            (".shared_mlp.input_linear.", (".shared_mlp.gate_proj.", ".shared_mlp.up_proj.")),
            (".shared_mlp.output_linear.", (".shared_mlp.down_proj.",)),
        ),
        stacked_experts=raw.num_local_experts or 0,
    )


def _rope(raw: _Raw) -> RopeConfig | None:
    if raw.position_embedding_type != "rope":
        return None
    scaling = raw.rope_parameters or raw.rope_scaling
    rope = parse_rope(scaling, raw.rope_theta, raw.max_position_embeddings)
    check_rotary(rope, raw.size_of_head())
    return rope


def _layers(raw: _Raw, rope: RopeConfig | None) -> tuple[LayerConfig, ...]:
    kinds: dict[str, AttentionConfig | MambaConfig] = {FULL: _attention(raw, rope)}
    if LINEAR in raw.types:
        kinds[LINEAR] = _mamba(raw)
    mlp, norm = _mlp(raw), _norm(raw)
    return tuple(
        LayerConfig(raw.hidden_size, mixer, mlp, norm)
        for mixer in by_type(raw.types, raw.num_hidden_layers, kinds)
    )


def _attention(raw: _Raw, rope: RopeConfig | None) -> AttentionConfig:
    return AttentionConfig(
        num_heads=raw.num_attention_heads,
        num_kv_heads=raw.num_kv_heads,
        head_dim=raw.size_of_head(),
        rope=rope,
        qkv_bias=raw.attention_bias,
        output_bias=raw.attention_bias,
    )


def _mamba(raw: _Raw) -> MambaConfig:
    heads, width = raw.mamba_n_heads, raw.mamba_expand * raw.hidden_size
    head_dim = width // heads if raw.mamba_d_head == "auto" else raw.mamba_d_head
    if heads * head_dim != width:
        raise BadConfig(
            f"mamba_n_heads {heads} of mamba_d_head {raw.mamba_d_head} are not "
            f"mamba_expand {raw.mamba_expand} times hidden_size {raw.hidden_size}"
        )
    least, most = raw.time_step_limit or (0.0, inf)
    return MambaConfig(
        heads=heads,
        groups=raw.mamba_n_groups,
        head_dim=head_dim,
        state_size=raw.mamba_d_state,
        conv_width=raw.mamba_d_conv,
        eps=raw.rms_norm_eps,
        dt_limit=(least, inf if isinstance(most, _Infinity) else most),
        conv_bias=raw.mamba_conv_bias,
        bias=raw.mamba_proj_bias,
    )


def _mlp(raw: _Raw) -> MlpConfig | MixtureConfig:
    mlp = MlpConfig(raw.shared_intermediate_size, place="shared_mlp.")
    if not raw.num_local_experts:
        return mlp
    return check_experts(
        MixtureConfig(
            raw.intermediate_size,
            raw.num_local_experts,
            raw.num_experts_per_tok,
            renormalise=True,
            place="",
            router=f"{EXPERTS}router.layer",
            experts=f"{EXPERTS}experts.",
            shared=SharedExpertConfig(mlp, weighted=False),
        )
    )


def _norm(raw: _Raw) -> RmsNormConfig:
    return RmsNormConfig(raw.rms_norm_eps)


GRANITE_HYBRID = GraniteHybrid(("Granite 4.0 micro, tiny, small",))
