"""DeepSeek-V2 and V3, GLM-4.7-Flash and Mistral Small 4: latent attention, grouped experts.

They differ in defaults, in the scores of experts, and in YaRN's factor on attention scores.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from engine.models.architectures.dense.llama import LlamaFields, usual_rope
from engine.models.architectures.fields.rope_fields import (
    parse_query_scaling,
    parse_rope,
    parse_score_factor,
    stretched_positions,
)
from engine.models.architectures.mixtures.mixture_model import InLayer, MixtureModel
from engine.models.architectures.mixtures.sigmoid_scores import (
    Count,
    GroupedMixture,
    grouped_mixture,
)
from engine.models.config import (
    ExpertCount,
    ModelConfig,
    ModelSizes,
    Positive,
    check_silu,
    check_value,
    read_json,
    read_sizes,
    served_dtype,
)
from engine.models.errors import BadConfig
from engine.models.layers.latent import LatentConfig
from engine.models.layers.layer import LayerConfig
from engine.models.layers.mlp import MlpConfig
from engine.models.layers.norms import RmsNormConfig
from engine.models.layers.rope import RopeConfig
from engine.models.names import PLAIN_NAMES, CheckpointNames
from kernels.latents.latent_shape import LatentShape

SPARSE, DENSE = "sparse", "dense"


class LatentFields(LlamaFields, kw_only=True):
    """The config fields of latent attention, with the defaults of DeepSeek in `transformers`."""

    kv_lora_rank: Positive = 512
    q_lora_rank: Positive | None = 1536
    qk_nope_head_dim: Positive = 128
    qk_rope_head_dim: Positive = 64
    v_head_dim: Positive = 128
    rope_interleave: bool | None = True


class _Glm4MoeLite(LatentFields, kw_only=True):
    rms_norm_eps: float = 1e-5
    q_lora_rank: Positive | None = 768
    qk_nope_head_dim: Positive = 192
    v_head_dim: Positive = 256


class _Mistral4(LatentFields, kw_only=True):
    kv_lora_rank: Positive = 256
    q_lora_rank: Positive | None = 1024
    qk_nope_head_dim: Positive = 64


MISTRAL4_ROPE = {
    "rope_type": "yarn",
    "factor": 128.0,
    "original_max_position_embeddings": 8192,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}


@dataclass(frozen=True, slots=True)
class LatentModel:
    """A dense model with latent attention. Implements `Architecture`."""

    family: str
    fields: type[LatentFields] = LatentFields
    usual_rope: dict[str, Any] | None = None
    scales_queries: bool = False
    # Field of config.json that holds the decoder's config; None: the top level.
    within: str | None = None
    names: CheckpointNames = PLAIN_NAMES
    examples: tuple[str, ...] = ()

    def read(self, path: Path) -> ModelConfig:
        raw = read_json(path, self.fields, self.within)
        check_silu(raw.hidden_act)
        for field in ("attention_bias", "mlp_bias"):
            check_value(field, getattr(raw, field), False)
        scaling = usual_rope(raw) or self.usual_rope
        rope = parse_rope(scaling, raw.rope_theta or 10000.0, raw.positions)
        queries = parse_query_scaling(scaling) if self.scales_queries else None
        # The rotated numbers form a separate key, so rope rotates all numbers of this key.
        rope = replace(rope, partial=1.0, queries=queries)
        positions = stretched_positions(rope, raw.positions)
        layer = self._layer(raw, rope, parse_score_factor(scaling, raw.positions))
        layers, drafting = raw.num_hidden_layers, raw.num_nextn_predict_layers or 0
        return ModelConfig(
            family=self.family,
            vocab_size=raw.vocab_size,
            hidden_size=raw.hidden_size,
            layers=(layer,) * layers,
            final_norm=layer.norm,
            max_positions=positions,
            tied=raw.tie_word_embeddings,
            dtype=served_dtype(raw),
            names=replace(self.names, drafting_layers=range(layers, layers + drafting)),
        )

    def sizes(self, path: Path) -> ModelSizes:
        return read_sizes(path)

    def layers(self, path: Path) -> tuple[LayerConfig, ...]:
        raw = read_json(path, self.fields, self.within)
        return (self._layer(raw),) * raw.num_hidden_layers

    def _layer(
        self, raw: LatentFields, rope: RopeConfig | None = None, factor: float = 1.0
    ) -> LayerConfig:
        nope, rotated = raw.qk_nope_head_dim, raw.qk_rope_head_dim
        scale = factor * (nope + rotated) ** -0.5
        attention = LatentConfig(
            num_heads=raw.num_attention_heads,
            shape=LatentShape(nope, rotated, raw.v_head_dim, raw.kv_lora_rank, scale),
            rope=rope,
            query_rank=raw.q_lora_rank,
            interleaved=bool(raw.rope_interleave),
        )
        mlp, norm = MlpConfig(raw.intermediate_size), RmsNormConfig(raw.rms_norm_eps)
        return LayerConfig(raw.hidden_size, attention, mlp, norm)


class _V3Mixture(GroupedMixture, kw_only=True):
    moe_intermediate_size: Positive = 2048
    n_routed_experts: ExpertCount = 256
    n_group: Positive | None = 8
    topk_group: Positive | None = 4
    first_k_dense_replace: Count | None = 3
    routed_scaling_factor: float = 2.5


class _V2Mixture(GroupedMixture, kw_only=True):
    moe_intermediate_size: Positive = 1407
    n_routed_experts: ExpertCount = 64
    n_shared_experts: Count | None = 2
    first_k_dense_replace: Count | None = 0
    norm_topk_prob: bool | None = False
    topk_method: str | None = "greedy"
    scoring_func: str = "softmax"


class _Glm4MoeLiteMixture(GroupedMixture, kw_only=True):
    moe_intermediate_size: Positive = 1536
    n_routed_experts: ExpertCount = 64
    num_experts_per_tok: Positive = 4
    routed_scaling_factor: float = 1.8
    num_hidden_layers: Positive = 47
    mlp_layer_types: list[str] | None = None


class _Mistral4Mixture(GroupedMixture, kw_only=True):
    moe_intermediate_size: Positive = 2048
    num_experts_per_tok: Positive = 4
    first_k_dense_replace: Count | None = 0
    scoring_func: str = "softmax"


def _v2_mixture(path: Path) -> InLayer:
    raw = read_json(path, _V2Mixture)
    check_value("norm_topk_prob", bool(raw.norm_topk_prob), False)
    if raw.topk_method == "greedy":
        raw.n_group = raw.topk_group = 1
    else:
        check_value("topk_method", raw.topk_method, "group_limited_greedy")
    return grouped_mixture(raw, group_best=1, corrected=False)


def _glm_mixture(path: Path) -> InLayer:
    raw = read_json(path, _Glm4MoeLiteMixture)
    in_layer, kinds = grouped_mixture(raw), raw.mlp_layer_types
    if kinds is None:
        return in_layer
    if len(kinds) != raw.num_hidden_layers or not {*kinds} <= {SPARSE, DENSE}:
        raise BadConfig(f"mlp_layer_types {kinds}: wanted is {SPARSE} or {DENSE} for each layer")
    mixture = in_layer(raw.first_k_dense_replace or 0)
    return lambda index: mixture if kinds[index] == SPARSE else None


def _v3_mixture(path: Path) -> InLayer:
    return grouped_mixture(read_json(path, _V3Mixture))


def _mistral4_mixture(path: Path, within: str | None) -> InLayer:
    return grouped_mixture(read_json(path, _Mistral4Mixture, within), corrected=False)


def mistral4(within: str | None, names: CheckpointNames, *examples: str) -> MixtureModel:
    """Return the architecture Mistral 4, read from config.json or from its field `within`.

    `names` are the names of tensors in the files.
    """
    dense = LatentModel("mistral4", _Mistral4, MISTRAL4_ROPE, True, within, names, examples)
    return MixtureModel(dense, partial(_mistral4_mixture, within=within))


DEEPSEEK_V2 = MixtureModel(
    LatentModel("deepseek_v2", examples=("DeepSeek-V2-Lite", "DeepSeek Coder V2 Lite")), _v2_mixture
)
DEEPSEEK_V3 = MixtureModel(
    LatentModel("deepseek_v3", examples=("DeepSeek-V3", "DeepSeek-R1", "Kimi K2")), _v3_mixture
)
MISTRAL4 = mistral4(None, PLAIN_NAMES, "Mistral Small 4, its text model")
GLM4_MOE_LITE = MixtureModel(
    LatentModel("glm4_moe_lite", _Glm4MoeLite, examples=("GLM-4.7-Flash",)), _glm_mixture
)
