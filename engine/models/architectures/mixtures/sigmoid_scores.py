"""GLM-4.5 to 4.7, dots.llm1 and MiniMax-M2: experts are chosen by sigmoid scores plus a bias.

Like DeepSeek V3, GLM and dots have groups of experts, shared experts and dense first layers.
MiniMax-M2 has norms over all heads together. In MiniMax-M2 and GLM, rope rotates only a part of
each head.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec

from engine.models.architectures.dense.llama import Llama, LlamaFields, usual_rope
from engine.models.architectures.fields.rope_fields import PositiveFloat
from engine.models.architectures.fields.windows import (
    FULL,
    SLIDING,
    WindowFields,
    Windows,
    windows_of,
)
from engine.models.architectures.mixtures.mixture_model import InLayer, MixtureModel, check_experts
from engine.models.config import ExpertCount, Positive, check_value, read_json
from engine.models.layers.mixture import MixtureConfig, SharedExpertConfig
from engine.models.layers.mlp import MlpConfig
from kernels.experts.scoring import Scoring

Count = Annotated[int, msgspec.Meta(ge=0, le=1024)]
GLM_ROTATED = 0.5


class GroupedMixture(msgspec.Struct, kw_only=True):
    """The config fields of DeepSeek V3's mixtures, with the defaults of GLM in `transformers`."""

    moe_intermediate_size: Positive = 1408
    n_routed_experts: ExpertCount = 128
    num_experts_per_tok: Positive = 8
    n_shared_experts: Count | None = 1
    n_group: Positive | None = 1
    topk_group: Positive | None = 1
    first_k_dense_replace: Count | None = 1
    norm_topk_prob: bool | None = True
    routed_scaling_factor: PositiveFloat = 1.0
    scoring_func: str = "sigmoid"
    moe_layer_freq: int = 1


class _Dots1Mixture(GroupedMixture, kw_only=True):
    n_routed_experts: ExpertCount
    num_experts_per_tok: Positive
    n_shared_experts: Count | None = None
    first_k_dense_replace: Count | None = 0
    norm_topk_prob: bool | None = False


def grouped_mixture(raw: GroupedMixture, *, group_best: int = 2, corrected: bool = True) -> InLayer:
    """Return a function from a layer's index to its mixture, or to None for the first layers.

    The first layers are dense. Groups are ranked by the sum of their `group_best` best experts. If
    `corrected`, scores are sigmoids, and experts are chosen by score plus a bias. If not, scores
    are a softmax. Raises ModelError.
    """
    check_value("scoring_func", raw.scoring_func, "sigmoid" if corrected else "softmax")
    check_value("moe_layer_freq", raw.moe_layer_freq, 1)
    shared = MlpConfig(
        raw.moe_intermediate_size * (raw.n_shared_experts or 0), place="shared_experts."
    )
    mixture = check_experts(
        MixtureConfig(
            raw.moe_intermediate_size,
            raw.n_routed_experts,
            raw.num_experts_per_tok,
            renormalise=bool(raw.norm_topk_prob),
            scoring=Scoring(
                sigmoid=corrected,
                factor=raw.routed_scaling_factor,
                groups=raw.n_group or 1,
                top_groups=raw.topk_group or 1,
                group_best=group_best,
            ),
            correction="gate.e_score_correction_bias" if corrected else None,
            shared=SharedExpertConfig(shared, weighted=False) if shared.size else None,
        )
    )
    dense = raw.first_k_dense_replace or 0
    return lambda index: None if index < dense else mixture


def _mixture(path: Path, fields: type[GroupedMixture]) -> InLayer:
    return grouped_mixture(read_json(path, fields))


class _Glm4Moe(LlamaFields, kw_only=True):
    rms_norm_eps: PositiveFloat = 1e-5
    use_qk_norm: bool = False


def _glm_rope(raw: LlamaFields) -> dict[str, Any]:
    return {"partial_rotary_factor": GLM_ROTATED, **(usual_rope(raw) or {})}


def _dots1_windows(raw: WindowFields) -> Windows:
    count, window = raw.num_hidden_layers, raw.window(None)
    first = count if window is None or raw.max_window_layers is None else raw.max_window_layers
    usual = [FULL if index < first else SLIDING for index in range(count)]
    return windows_of(raw.layer_types or usual, count, window)


class _MiniMaxM2(LlamaFields, kw_only=True):
    head_dim: Positive | None = 128
    rotary_dim: Positive | None = None


class _MiniMaxMixture(msgspec.Struct, kw_only=True):
    intermediate_size: Positive
    num_local_experts: ExpertCount = 256
    num_experts_per_tok: Positive = 8
    scoring_func: str = "sigmoid"
    use_routing_bias: bool = True
    shared_intermediate_size: int | None = 0
    qk_norm_type: str = "per_layer"
    attn_type_list: list[int] | None = None


def _minimax_rope(raw: LlamaFields) -> dict[str, Any] | None:
    assert isinstance(raw, _MiniMaxM2)
    given = usual_rope(raw)
    if raw.rotary_dim is None:
        return given
    part = raw.rotary_dim / raw.size_of_head()
    return {"partial_rotary_factor": part, **(given or {})}


def _minimax_mixture(path: Path) -> InLayer:
    raw = read_json(path, _MiniMaxMixture)
    check_value("scoring_func", raw.scoring_func, "sigmoid")
    check_value("use_routing_bias", raw.use_routing_bias, True)
    check_value("shared_intermediate_size", raw.shared_intermediate_size or 0, 0)
    check_value("qk_norm_type", raw.qk_norm_type, "per_layer")
    check_value("attn_type_list", sorted(set(raw.attn_type_list or [1])), [1])
    mixture = check_experts(
        MixtureConfig(
            raw.intermediate_size,
            raw.num_local_experts,
            raw.num_experts_per_tok,
            renormalise=True,
            place="block_sparse_moe.",
            names=("w1", "w3", "w2"),
            scoring=Scoring(sigmoid=True),
            correction="e_score_correction_bias",
        )
    )
    return lambda _: mixture


GLM4_MOE = MixtureModel(
    Llama(
        "glm4_moe",
        reads_attention_bias=True,
        qk_norm=True,
        rope_fields=_glm_rope,
        partial_rotary=True,
        fields=_Glm4Moe,
        output_bias=None,
        qk_norm_by="use_qk_norm",
        examples=("GLM-4.5", "GLM-4.5-Air", "GLM-4.6", "GLM-4.7"),
    ),
    partial(_mixture, fields=GroupedMixture),
)
DOTS1 = MixtureModel(
    Llama(
        "dots1",
        reads_attention_bias=True,
        qk_norm=True,
        windows=_dots1_windows,
        examples=("dots.llm1 142B-A14B",),
    ),
    partial(_mixture, fields=_Dots1Mixture),
)
MINIMAX_M2 = MixtureModel(
    Llama(
        "minimax_m2",
        qk_norm=True,
        rope_fields=_minimax_rope,
        default_theta=5e6,
        partial_rotary=True,
        fields=_MiniMaxM2,
        norms_together=True,
        examples=("MiniMax-M2", "MiniMax-M2.5"),
    ),
    _minimax_mixture,
)
