"""Granite 3 and 4.1, dense or with experts. They are Llama models with four multipliers.

    embedding_multiplier   factor on embeddings
    residual_multiplier    factor on the outputs of attention and MLP, before they are added
    attention_multiplier   factor on attention scores, instead of head_dim ** -0.5
    logits_scaling         divisor of logits

The residual is stored divided by the residual multiplier s, so that outputs are added without a
factor. This needs only other values in the config, because norm(s y) with epsilon e equals norm(y)
with epsilon e / s^2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec

from engine.models.architectures.dense.llama import Llama
from engine.models.architectures.mixtures.mixture_model import MixtureModel, local_experts
from engine.models.config import ModelConfig, ModelSizes, read_json
from engine.models.layers.attention import AttentionConfig
from engine.models.layers.layer import LayerConfig
from engine.models.layers.mixture import MixtureConfig
from engine.models.layers.norms import RmsNormConfig
from engine.models.names import CheckpointNames

EXPERTS = "block_sparse_moe."
_STACKED = {"input_linear": "gate_up_proj", "output_linear": "down_proj"}
NAMES = CheckpointNames(
    endings=tuple(
        (f"{EXPERTS}{name}.{suffix}", f"{EXPERTS}experts.{own}.{suffix}")
        for name, own in _STACKED.items()
        for suffix in ("weight", "weight_scale")
    )
)
Multiplier = Annotated[float, msgspec.Meta(ge=1e-6, le=1e6)]


class Multipliers(msgspec.Struct, kw_only=True):
    """The multipliers of Granite, with the defaults of `transformers`."""

    embedding_multiplier: Multiplier = 1.0
    residual_multiplier: Multiplier = 1.0
    attention_multiplier: Multiplier = 1.0
    logits_scaling: Multiplier = 1.0

    def multiply(self, model: ModelConfig) -> ModelConfig:
        """Return the model with the multipliers applied. The model must not have norms of heads."""
        return replace(
            model,
            layers=tuple(self._layer(layer) for layer in model.layers),
            final_norm=self._norm(model.final_norm),
            embedding_scale=self.embedding_multiplier / self.residual_multiplier,
            logits_divisor=self.logits_scaling,
        )

    def _layer(self, layer: LayerConfig) -> LayerConfig:
        mixer = layer.mixer
        if isinstance(mixer, AttentionConfig):
            mixer = replace(mixer, scale=self.attention_multiplier)
        return replace(layer, mixer=mixer, norm=self._norm(layer.norm))

    def _norm(self, norm: RmsNormConfig) -> RmsNormConfig:
        return replace(norm, eps=norm.eps / self.residual_multiplier**2)


@dataclass(frozen=True, slots=True)
class Granite:
    """A Granite model, dense or with experts. Implements `Architecture`."""

    plain: Llama | MixtureModel

    @property
    def examples(self) -> tuple[str, ...]:
        return self.plain.examples

    def read(self, path: Path) -> ModelConfig:
        model = read_json(path, Multipliers).multiply(self.plain.read(path))
        mlp = model.layers[0].mlp
        if not isinstance(mlp, MixtureConfig):
            return model
        return replace(model, names=replace(NAMES, stacked_experts=mlp.num_experts))

    def sizes(self, path: Path) -> ModelSizes:
        return self.plain.sizes(path)

    def layers(self, path: Path) -> tuple[LayerConfig, ...]:
        return self.plain.layers(path)


GRANITE_MOE = Granite(
    MixtureModel(
        Llama("granite_moe", reads_attention_bias=True, examples=("Granite 3 1B-A400M, 3B-A800M",)),
        partial(local_experts, router="router.layer"),
    )
)
GRANITE = Granite(
    Llama(
        "granite",
        reads_attention_bias=True,
        reads_mlp_bias=True,
        examples=("Granite 3.3 2B, 8B", "Granite 4.1"),
    )
)
