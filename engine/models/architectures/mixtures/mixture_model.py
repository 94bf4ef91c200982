"""Qwen2-MoE, Qwen3-MoE, Mixtral and OLMoE: dense models with mixtures of experts as MLPs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from engine.models.architectures.architecture import Architecture
from engine.models.architectures.dense.llama import Llama
from engine.models.architectures.fields.windows import in_every_layer, in_every_layer_by_flag
from engine.models.config import (
    ExpertCount,
    ModelConfig,
    ModelSizes,
    Positive,
    check_value,
    read_json,
)
from engine.models.errors import BadConfig, UnsupportedModel
from engine.models.layers.draft_head import DraftHeadConfig, names_beside
from engine.models.layers.layer import LayerConfig
from engine.models.layers.mixture import MixtureConfig, SharedExpertConfig
from engine.models.layers.mlp import MlpConfig
from kernels.errors import UnsupportedShape
from kernels.limits import check_groups

# Layer index -> mixture; None: the MLP of the dense model.
InLayer = Callable[[int], MixtureConfig | None]


@dataclass(frozen=True, slots=True)
class MixtureModel:
    """A model like `dense`, but with mixtures instead of MLPs. Implements `Architecture`."""

    dense: Architecture
    read_mixtures: Callable[[Path], InLayer]

    @property
    def examples(self) -> tuple[str, ...]:
        return self.dense.examples

    def read(self, path: Path) -> ModelConfig:
        model = self.dense.read(path)
        layers = self._with_mixtures(path, model.layers)
        mixtures = [layer.mlp for layer in layers if isinstance(layer.mlp, MixtureConfig)]
        stacked = max((one.num_experts for one in mixtures), default=0)
        names = replace(model.names, stacked_experts=stacked)
        head = _possible_head(model, layers)
        return replace(model, layers=layers, names=names, possible_head=head)

    def sizes(self, path: Path) -> ModelSizes:
        return self.dense.sizes(path)

    def layers(self, path: Path) -> tuple[LayerConfig, ...]:
        return self._with_mixtures(path, self.dense.layers(path))

    def _with_mixtures(
        self, path: Path, layers: tuple[LayerConfig, ...]
    ) -> tuple[LayerConfig, ...]:
        in_layer = self.read_mixtures(path)
        found = [in_layer(index) for index in range(len(layers))]
        return tuple(
            layer if mixture is None else replace(layer, mlp=mixture)
            for layer, mixture in zip(layers, found, strict=True)
        )


def _possible_head(model: ModelConfig, layers: tuple[LayerConfig, ...]) -> DraftHeadConfig | None:
    if len(model.names.drafting_layers) != 1:
        return None
    return DraftHeadConfig(layers[-1], model.final_norm, names_beside(len(layers)))


def check_experts(mixture: MixtureConfig) -> MixtureConfig:
    """Return the mixture unchanged. Raises ModelError if it has too few experts for `top_k`."""
    if mixture.top_k > mixture.num_experts:
        raise BadConfig(
            f"num_experts_per_tok {mixture.top_k} is more than the {mixture.num_experts} experts"
        )
    scoring, top_k = mixture.scoring, mixture.top_k
    groups, top_groups = scoring.groups, scoring.top_groups
    try:
        check_groups(mixture.num_experts, groups, top_groups, top_k, scoring.group_best)
    except UnsupportedShape as error:
        raise UnsupportedModel(f"n_group {groups}, topk_group {top_groups}: {error}") from error
    return mixture


class _Qwen3Moe(msgspec.Struct, kw_only=True):
    moe_intermediate_size: Positive
    num_experts: ExpertCount | None = None
    num_local_experts: ExpertCount | None = None  # the newer spelling of `num_experts`
    num_experts_per_tok: Positive = 8
    norm_topk_prob: bool = False
    decoder_sparse_step: Positive = 1
    mlp_only_layers: list[int] | None = None


class _Qwen2Moe(_Qwen3Moe, kw_only=True):
    num_experts: ExpertCount | None = 60
    num_experts_per_tok: Positive = 4
    shared_expert_intermediate_size: Positive = 5632
    qkv_bias: bool = True
    use_sliding_window: bool = False


def _qwen2_moe(path: Path) -> InLayer:
    raw = read_json(path, _Qwen2Moe)
    check_value("use_sliding_window", raw.use_sliding_window, False)
    check_value("qkv_bias", raw.qkv_bias, True)
    mlp = MlpConfig(raw.shared_expert_intermediate_size, place="shared_expert.")
    return _qwen_mixture(raw, SharedExpertConfig(mlp))


def _qwen3_moe(path: Path) -> InLayer:
    return _qwen_mixture(read_json(path, _Qwen3Moe), None)


def _qwen_mixture(raw: _Qwen3Moe, shared: SharedExpertConfig | None) -> InLayer:
    mixture = check_experts(
        MixtureConfig(
            raw.moe_intermediate_size,
            raw.num_experts or raw.num_local_experts or 128,
            raw.num_experts_per_tok,
            raw.norm_topk_prob,
            shared=shared,
        )
    )
    dense = frozenset(raw.mlp_only_layers or ())

    def in_layer(index: int) -> MixtureConfig | None:
        sparse = index not in dense and (index + 1) % raw.decoder_sparse_step == 0
        return mixture if sparse else None

    return in_layer


class _Local(msgspec.Struct, kw_only=True):
    intermediate_size: Positive
    num_local_experts: ExpertCount = 8
    num_experts_per_tok: Positive = 2


def local_experts(path: Path, **names: Any) -> InLayer:
    """Read a mixture from the fields of Mixtral and Granite. `names` are passed to its config."""
    raw = read_json(path, _Local)
    sizes = raw.intermediate_size, raw.num_local_experts, raw.num_experts_per_tok
    mixture = check_experts(
        MixtureConfig(*sizes, renormalise=True, place="block_sparse_moe.", **names)
    )
    return lambda _: mixture


class _Olmoe(msgspec.Struct, kw_only=True):
    intermediate_size: Positive
    num_experts: ExpertCount = 64
    num_experts_per_tok: Positive = 8
    norm_topk_prob: bool = False
    clip_qkv: float | None = None


def _olmoe(path: Path) -> InLayer:
    raw = read_json(path, _Olmoe)
    check_value("clip_qkv", raw.clip_qkv, None)
    mixture = check_experts(
        MixtureConfig(
            raw.intermediate_size, raw.num_experts, raw.num_experts_per_tok, raw.norm_topk_prob
        )
    )
    return lambda _: mixture


QWEN2_MOE = MixtureModel(
    Llama("qwen2_moe", qkv_bias=True, examples=("Qwen1.5-MoE A2.7B", "Qwen2 57B-A14B")), _qwen2_moe
)
QWEN3_MOE = MixtureModel(
    Llama(
        "qwen3_moe",
        reads_attention_bias=True,
        qk_norm=True,
        windows=in_every_layer_by_flag,
        examples=("Qwen3 30B-A3B", "Qwen3 Coder 30B-A3B"),
    ),
    _qwen3_moe,
)
MIXTRAL = MixtureModel(
    Llama(
        "mixtral",
        windows=in_every_layer,
        default_theta=1e6,
        examples=("Mixtral 8x7B", "Mixtral 8x22B"),
    ),
    partial(local_experts, names=("w1", "w3", "w2")),
)
OLMOE = MixtureModel(
    Llama(
        "olmoe",
        reads_attention_bias=True,
        qk_norm=True,
        norms_together=True,
        examples=("OLMoE 1B-7B",),
    ),
    _olmoe,
)
