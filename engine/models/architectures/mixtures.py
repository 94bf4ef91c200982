"""Qwen3-MoE and Mixtral: dense models with mixtures of experts in place of MLPs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from engine.models.architectures.llama import Llama
from engine.models.architectures.windows import in_every_layer, in_every_layer_by_flag
from engine.models.config import ExpertCount, ModelConfig, ModelSizes, Positive, read_json
from engine.models.errors import BadConfig
from engine.models.layers.layer import LayerConfig
from engine.models.layers.mixture import MixtureConfig

InLayer = Callable[[int], MixtureConfig | None]  # mixture of a layer; None: the dense model's MLP


@dataclass(frozen=True, slots=True)
class MixtureModel:
    """A model with the layers of `dense`, but for their MLPs; implements `Architecture`."""

    dense: Llama
    read_mixtures: Callable[[Path], InLayer]  # reads config.json; raises ModelError

    @property
    def examples(self) -> tuple[str, ...]:
        return self.dense.examples

    def read(self, path: Path) -> ModelConfig:
        model = self.dense.read(path)
        return replace(model, layers=self._with_mixtures(path, model.layers))

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


def check_experts(mixture: MixtureConfig) -> MixtureConfig:
    """Return the mixture; raise BadConfig if a token uses more experts than there are."""
    if mixture.top_k > mixture.num_experts:
        raise BadConfig(
            f"num_experts_per_tok {mixture.top_k} is more than the {mixture.num_experts} experts"
        )
    return mixture


class _Qwen3Moe(msgspec.Struct, kw_only=True):
    moe_intermediate_size: Positive
    num_experts: ExpertCount | None = None
    num_local_experts: ExpertCount | None = None  # the newer spelling
    num_experts_per_tok: Positive = 8
    norm_topk_prob: bool = False
    decoder_sparse_step: Positive = 1
    mlp_only_layers: list[int] | None = None


def _qwen3_moe(path: Path) -> InLayer:
    raw = read_json(path, _Qwen3Moe)
    num_experts = raw.num_experts or raw.num_local_experts or 128
    mixture = check_experts(
        MixtureConfig(
            raw.moe_intermediate_size, num_experts, raw.num_experts_per_tok, raw.norm_topk_prob
        )
    )
    dense = frozenset(raw.mlp_only_layers or ())

    def in_layer(index: int) -> MixtureConfig | None:
        sparse = index not in dense and (index + 1) % raw.decoder_sparse_step == 0
        return mixture if sparse else None

    return in_layer


class _Mixtral(msgspec.Struct, kw_only=True):
    intermediate_size: Positive
    num_local_experts: ExpertCount = 8
    num_experts_per_tok: Positive = 2


def _mixtral(path: Path) -> InLayer:
    raw = read_json(path, _Mixtral)
    mixture = check_experts(
        MixtureConfig(
            raw.intermediate_size,
            raw.num_local_experts,
            raw.num_experts_per_tok,
            renormalise=True,
            place="block_sparse_moe.",
            names=("w1", "w3", "w2"),
        )
    )
    return lambda _: mixture


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
    _mixtral,
)
