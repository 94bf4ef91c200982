"""Nemotron-H, Nemotron Nano 2, Nemotron 3, whose files call a mixer or an MLP alone a layer.

    in the files    mixer | mixer | MLP | mixer | experts    each with a norm before it
    served          mixer | mixer, MLP  | mixer, experts

A mixer is a Mamba-2 or attention. In this engine a layer has a mixer, and the MLP or mixture after
it if there is one. Attention has no rope. MLPs and experts have no gate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Annotated

import msgspec

from engine.models.architectures.fields.rope_fields import PositiveFloat
from engine.models.architectures.fields.windows import FULL
from engine.models.architectures.hybrids.granite_hybrid import LINEAR, OLDER_TYPES
from engine.models.architectures.mixtures.mixture_model import check_experts
from engine.models.config import (
    MAX_LAYERS,
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
from engine.models.layers.draft_head import DraftHeadConfig, HeadNames
from engine.models.layers.layer import LayerConfig
from engine.models.layers.mamba import MambaConfig
from engine.models.layers.mixture import MixtureConfig, SharedExpertConfig
from engine.models.layers.mlp import MlpConfig
from engine.models.layers.norms import RmsNormConfig
from engine.models.names import CheckpointNames
from kernels.experts.scoring import Scoring
from kernels.norms.gate import RELU2

MLP, EXPERTS = "mlp", "moe"
SERVED_TYPES = (LINEAR, FULL, MLP, EXPERTS)
LETTERS = {"M": LINEAR, "*": FULL, "-": MLP, "E": EXPERTS}
HEAD = HeadNames(
    "mtp.layers.0.eh_proj",
    "mtp.layers.0.enorm",
    "mtp.layers.0.hnorm",
    "mtp.layers.1.final_layernorm",
)
Count = msgspec.Meta(min_length=1, max_length=MAX_LAYERS)


class _Raw(ModelSizes, kw_only=True):
    """The fields of config.json, with the defaults of `transformers`."""

    vocab_size: Positive = 131072
    hidden_size: Positive = 4096
    intermediate_size: Positive = 21504
    # Not used, because the list of types has an entry for every layer.
    num_hidden_layers: LayerCount = 4
    num_attention_heads: Positive = 32
    num_key_value_heads: Positive | None = 8
    head_dim: Positive | None = 128
    max_position_embeddings: Positive = 4096
    layers_block_type: Annotated[list[str], Count] | None = None
    layer_types: Annotated[list[str], Count] | None = None
    # The older form of the list of types.
    hybrid_override_pattern: Annotated[str, Count] | None = None
    layer_norm_epsilon: PositiveFloat = 1e-5
    mlp_hidden_act: str = "relu2"
    mlp_bias: bool = False
    mamba_num_heads: Positive = 128
    mamba_head_dim: Positive = 64
    mamba_hidden_act: str = "silu"
    ssm_state_size: Positive = 128
    n_groups: Positive = 8
    conv_kernel: Positive = 4
    use_conv_bias: bool = True
    use_bias: bool = False
    time_step_min: Annotated[float, msgspec.Meta(ge=0)] = 0.001
    n_routed_experts: ExpertCount = 8
    num_experts_per_tok: Positive = 2
    moe_intermediate_size: Positive = 7688
    moe_shared_expert_intermediate_size: Positive = 7688
    moe_latent_size: Positive | None = None
    n_group: Positive = 1
    topk_group: Positive = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: PositiveFloat = 1.0
    sliding_window: int | None = None
    residual_in_fp32: bool = False
    num_nextn_predict_layers: Annotated[int, msgspec.Meta(ge=0, le=16)] | None = None
    mtp_layers_block_type: list[str] | None = None
    mtp_hybrid_override_pattern: str | None = None

    @property
    def has_served_head(self) -> bool:
        """True if the config has a draft head that is served: attention, then experts."""
        listed = self.mtp_layers_block_type
        if listed is None:
            listed = [LETTERS.get(one, one) for one in self.mtp_hybrid_override_pattern or "*E"]
        types = [OLDER_TYPES.get(one, one) for one in listed]
        return self.num_nextn_predict_layers == 1 and types == [FULL, EXPERTS]

    @property
    def types(self) -> list[str]:
        listed = self.layers_block_type or self.layer_types
        if listed is None:
            if self.hybrid_override_pattern is None:
                raise BadConfig("neither layers_block_type nor hybrid_override_pattern is given")
            listed = [LETTERS.get(one, one) for one in self.hybrid_override_pattern]
        return [OLDER_TYPES.get(one, one) for one in listed]


@dataclass(frozen=True, slots=True)
class NemotronH:
    """The architecture of Nemotron-H. Implements `Architecture`."""

    examples: tuple[str, ...]

    def read(self, path: Path) -> ModelConfig:
        raw = read_json(path, _Raw)
        check_heads(raw)
        _check_fields(raw)
        return ModelConfig(
            family="nemotron_h",
            vocab_size=raw.vocab_size,
            hidden_size=raw.hidden_size,
            layers=_layers(raw),
            final_norm=_norm(raw),
            max_positions=raw.max_position_embeddings,
            tied=raw.tie_word_embeddings,
            dtype=served_dtype(raw),
            names=_names(raw),
            possible_head=_possible_head(raw),
        )

    def sizes(self, path: Path) -> ModelSizes:
        return read_json(path, _Raw)

    def layers(self, path: Path) -> tuple[LayerConfig, ...]:
        return _layers(read_json(path, _Raw))


def _check_fields(raw: _Raw) -> None:
    check_value("mlp_hidden_act", raw.mlp_hidden_act, "relu2")
    check_value("mamba_hidden_act", raw.mamba_hidden_act, "silu")
    check_value("sliding_window", raw.sliding_window, None)
    check_value("residual_in_fp32", raw.residual_in_fp32, False)
    if raw.moe_latent_size is not None:
        check_value("mlp_bias beside moe_latent_size", raw.mlp_bias, False)


def _layers(raw: _Raw) -> tuple[LayerConfig, ...]:
    mixers: dict[str, AttentionConfig | MambaConfig] = {LINEAR: _mamba(raw), FULL: _attention(raw)}
    mlps: dict[str, MlpConfig | MixtureConfig] = {}
    if MLP in raw.types:
        mlps[MLP] = MlpConfig(raw.intermediate_size, raw.mlp_bias, gate=RELU2)
    if EXPERTS in raw.types:
        mlps[EXPERTS] = _mixture(raw)
    return tuple(
        LayerConfig(
            raw.hidden_size,
            mixers[raw.types[first]],
            None if second is None else mlps[raw.types[second]],
            _norm(raw),
        )
        for first, second in _joined(raw.types)
    )


def _possible_head(raw: _Raw) -> DraftHeadConfig | None:
    if not raw.has_served_head:
        return None
    return DraftHeadConfig(_layer_of_head(raw), _norm(raw), HEAD)


def _layer_of_head(raw: _Raw) -> LayerConfig:
    return LayerConfig(raw.hidden_size, _attention(raw), _mixture(raw), _norm(raw))


def _mixture(raw: _Raw) -> MixtureConfig:
    size, place = raw.moe_shared_expert_intermediate_size, "shared_experts."
    return check_experts(
        MixtureConfig(
            raw.moe_intermediate_size,
            raw.n_routed_experts,
            raw.num_experts_per_tok,
            renormalise=raw.norm_topk_prob,
            names=("up_proj", "down_proj"),
            gate=RELU2,
            scoring=Scoring(
                sigmoid=True,
                factor=raw.routed_scaling_factor,
                groups=raw.n_group,
                top_groups=raw.topk_group,
            ),
            correction="gate.e_score_correction_bias",
            shared=SharedExpertConfig(MlpConfig(size, raw.mlp_bias, place, RELU2), weighted=False),
            latent=raw.moe_latent_size,
        )
    )


def _joined(types: Sequence[str]) -> list[tuple[int, int | None]]:
    joined: list[tuple[int, int | None]] = []
    for index, kind in enumerate(types):
        if kind not in SERVED_TYPES:
            names = ", ".join(SERVED_TYPES)
            raise UnsupportedModel(f"layers_block_type {kind!r}: served are {names}")
        if kind in (LINEAR, FULL):
            joined.append((index, None))
        elif joined and joined[-1][1] is None:
            joined[-1] = joined[-1][0], index
        else:
            raise UnsupportedModel(
                f"layers_block_type: {kind} of layer {index} comes after neither {LINEAR} nor "
                f"{FULL}"
            )
    return joined


def _names(raw: _Raw) -> CheckpointNames:
    count = len(_layers(raw))
    drafting = range(count, count + raw.has_served_head)
    return CheckpointNames(tuple(_prefixes(raw)), drafting_layers=drafting)


def _prefixes(raw: _Raw) -> Iterator[tuple[str, str]]:
    """Yield pairs of name prefixes: the prefix in the files, and the decoder's prefix."""
    yield "backbone.embeddings.", "model.embed_tokens."
    yield "backbone.norm_f.", "model.norm."
    for own, (layer, numbers) in enumerate(zip(_layers(raw), _joined(raw.types), strict=True)):
        norms = "input_layernorm", layer.before_mlp
        for number, part, norm in zip(numbers, (layer.mixer, layer.mlp), norms, strict=True):
            if part is not None:
                yield f"backbone.layers.{number}.mixer.", f"model.layers.{own}.{part.place}"
                yield f"backbone.layers.{number}.norm.", f"model.layers.{own}.{norm}."

    if raw.has_served_head:
        last, head = f"model.layers.{len(_layers(raw))}.", _layer_of_head(raw)
        yield "mtp.layers.0.mixer.", last + head.mixer.place
        yield "mtp.layers.0.norm.", f"{last}input_layernorm."
        yield "mtp.layers.1.mixer.", last + _mixture(raw).place
        yield "mtp.layers.1.norm.", f"{last}{head.before_mlp}."


def _attention(raw: _Raw) -> AttentionConfig:
    return AttentionConfig(
        num_heads=raw.num_attention_heads,
        num_kv_heads=raw.num_kv_heads,
        head_dim=raw.size_of_head(),
        rope=None,
    )


def _mamba(raw: _Raw) -> MambaConfig:
    return MambaConfig(
        heads=raw.mamba_num_heads,
        groups=raw.n_groups,
        head_dim=raw.mamba_head_dim,
        state_size=raw.ssm_state_size,
        conv_width=raw.conv_kernel,
        eps=raw.layer_norm_epsilon,
        dt_limit=(raw.time_step_min, inf),  # the file's maximum is ignored, as in `transformers`
        conv_bias=raw.use_conv_bias,
        bias=raw.use_bias,
    )


def _norm(raw: _Raw) -> RmsNormConfig:
    return RmsNormConfig(raw.layer_norm_epsilon, rounds_once=True)


NEMOTRON_H = NemotronH(
    ("Nemotron-H 8B, 47B, 56B", "Nemotron Nano 2 9B, 12B", "Nemotron 3 Nano 30B-A3B, Super")
)
