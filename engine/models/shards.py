"""The sizes of each rank's part of a model (tensor parallel).

    heads      query heads divided evenly; KV heads too, or several ranks have the same KV head
    latents    shared by all heads: the same on every rank
    states     recurrent states divided by key heads or groups, with their channels and norms
    MLP        rows of gate and up, columns of down; the same part of every expert
    head       rows of the vocabulary if divisible; else every rank has all rows
    undivided  embedding, norms, routers

A layer's output is summed over the ranks (`RankGroup.total`). Every rank gets exactly the same sum,
so all ranks have the same residual. Commands that only make plans also use this module, so it does
not import torch.

Elsewhere: the ranks' processes and communication (`engine.ranks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine.models.config import ModelConfig
from engine.models.errors import UnsupportedModel
from engine.models.layers.draft_head import DraftHeadConfig
from engine.models.layers.layer import LayerConfig
from engine.models.layers.mixer import check_divides
from engine.models.layers.mixture import MixtureConfig
from engine.models.layers.mlp import MlpConfig
from engine.models.modules import LinearConfig, WeightFormat

MOST_RANKS = 8


def check_shards(model: ModelConfig, num_ranks: int) -> None:
    """Raise UnsupportedModel if a model cannot be divided among `num_ranks` ranks."""
    check_layer_shards(model.layers_with_memory, model.weight_format, num_ranks)


def check_layer_shards(
    layers: Sequence[LayerConfig], weight_format: WeightFormat, num_ranks: int
) -> None:
    """Raise UnsupportedModel if layers in this weight format cannot be divided among the ranks."""
    if num_ranks == 1:
        return
    for index, layer in enumerate(layers):
        layer.mixer.check_shard(num_ranks)
        _check_mlp(layer, num_ranks)
        part = shard_layer(layer, num_ranks)
        for whole, cut in zip(layer.matrices(index), part.matrices(index), strict=True):
            if cut != whole and not cut.plain:
                _check_matrix(cut, weight_format, num_ranks)


def shard_model(model: ModelConfig, num_ranks: int) -> ModelConfig:
    """Return the model with the sizes of one rank, but the full vocabulary."""
    head = None if model.draft_head is None else shard_head(model.draft_head, num_ranks)
    return replace(model, layers=shard_layers(model.layers, num_ranks), draft_head=head)


def shard_head(head: DraftHeadConfig, num_ranks: int) -> DraftHeadConfig:
    """Return the draft head with one rank's sizes of its layer. Its projection is not divided."""
    return replace(head, layer=shard_layer(head.layer, num_ranks))


def shard_layers(layers: Sequence[LayerConfig], num_ranks: int) -> tuple[LayerConfig, ...]:
    """Return the layers with the sizes of one rank."""
    return tuple(shard_layer(layer, num_ranks) for layer in layers)


def shard_layer(layer: LayerConfig, num_ranks: int) -> LayerConfig:
    """Return a layer with the sizes of one rank. Sizes must be divisible (`check_shards`)."""
    if num_ranks == 1:
        return layer
    return replace(layer, mixer=layer.mixer.shard(num_ranks), mlp=_shard_mlp(layer.mlp, num_ranks))


def _shard_mlp(
    mlp: MlpConfig | MixtureConfig | None, num_ranks: int
) -> MlpConfig | MixtureConfig | None:
    if mlp is None:
        return None
    part = replace(mlp, size=mlp.size // num_ranks)
    if not isinstance(part, MixtureConfig) or part.shared is None:
        return part
    own = replace(part.shared.mlp, size=part.shared.mlp.size // num_ranks)
    return replace(part, shared=replace(part.shared, mlp=own))


def vocabulary_rows(vocab_size: int, num_ranks: int) -> int:
    """Return the number of rows of the output projection that each rank multiplies."""
    return vocab_size if vocab_size % num_ranks else vocab_size // num_ranks


def _check_mlp(layer: LayerConfig, num_ranks: int) -> None:
    sizes = {} if layer.mlp is None else {"intermediate_size": layer.mlp.size}
    if isinstance(layer.mlp, MixtureConfig):
        sizes = {"the experts' intermediate size": layer.mlp.size}
        if layer.mlp.shared is not None:
            sizes["the shared expert's size"] = layer.mlp.shared.mlp.size
    for field, size in sizes.items():
        check_divides(num_ranks, field, size)


def _check_matrix(part: LinearConfig, weight_format: WeightFormat, num_ranks: int) -> None:
    try:
        weight_format.check_shard(part)
    except UnsupportedModel as error:
        raise UnsupportedModel(f"tensor_parallel {num_ranks}: {error}") from error
