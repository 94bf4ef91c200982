"""The tensors of a decoder, and their names in model checkpoints.

In the engine the query, key and value projections are one matrix, and the gate and up projections
are another. A dense layer therefore has four matrix products. `checkpoint_tensors` maps every name
of a checkpoint to the part of a parameter that it fills.

Layers may be offloaded to host memory (`LayerHomes`). The tensors of such a layer exist twice: in
host memory, where they are loaded, and in a device buffer, where products read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from engine.models.config import ModelConfig
from engine.models.layers.draft_head import DraftHead
from engine.models.layers.layer import DecoderLayer
from engine.models.layers.layer_inputs import LayerInputs
from engine.models.layers.norms import RmsNorm
from engine.models.modules import Allocator, CheckpointTensor, Experts, Memory, Module, walk
from engine.models.rank_group import RankGroup
from engine.models.shards import shard_head, shard_layers, vocabulary_rows
from engine.models.weight_formats.plain import fill_matrix
from storage.layouts.stage import Stage, whole


class LayerHomes(Protocol):
    """An interface to the memory of layers that are offloaded to host memory.

    Layers are numbered from 0 within a stage.
    """

    @property
    def num_bytes(self) -> int:
        """The number of bytes of all buffers on the device."""
        ...

    def host(self, index: int) -> Memory | None:
        """Return the host memory for a layer's tensors, or None if the layer is not offloaded."""
        ...

    def buffer(self, index: int) -> Memory:
        """Return the device buffer from which a layer is computed. Layers share buffers."""
        ...

    def keep(self, index: int) -> None:
        """Copy the content of the layer's buffer to the layer's host memory."""
        ...


@dataclass(frozen=True, slots=True)
class Parameters:
    """All tensors of a decoder.

    `head` is the same tensor as `embedding` if the config ties the two. A rank has a part of every
    layer, and some rows of an untied output head. A stage has only its own layers, and the
    embedding or head only if it reads them. For offloaded layers, `layers` has the tensors in
    device buffers, and `in_host` those in host memory.
    """

    embedding: Tensor  # (V, H)
    layers: tuple[DecoderLayer, ...]
    final_norm: RmsNorm
    head: Tensor  # (V, H)
    draft_head: DraftHead | None = None
    homes: LayerHomes | None = None
    in_host: Mapping[int, DecoderLayer] = field(default_factory=dict)
    layer_inputs: LayerInputs | None = None

    @property
    def kept(self) -> tuple[DecoderLayer, ...]:
        """The layers with the tensors in which weights are stored, on the device or the host."""
        return tuple(self.in_host.get(layer.index, layer) for layer in self.layers)

    def tensors(self) -> Iterator[Tensor]:
        """Yield every stored parameter once."""
        return self._with_layers(self.kept)

    def modules(self) -> Iterator[Module]:
        """Yield the modules with the stored tensors, in order."""
        parts = self.layer_inputs, self.kept, self.final_norm, self.draft_head
        yield from walk(parts, Module)  # type: ignore[type-abstract]

    @property
    def num_bytes(self) -> int:
        """The number of bytes stored on the device."""
        buffers = 0 if self.homes is None else self.homes.num_bytes
        resident = tuple(layer for layer in self.layers if layer.index not in self.in_host)
        held = self._with_layers(resident)
        return buffers + sum(tensor.numel() * tensor.element_size() for tensor in held)

    def _with_layers(self, layers: tuple[DecoderLayer, ...]) -> Iterator[Tensor]:
        yield self.embedding
        parts = self.layer_inputs, layers, self.final_norm, self.draft_head
        yield from walk(parts, Tensor)
        if self.head is not self.embedding:
            yield self.head


def empty_parameters(
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    group: RankGroup | None = None,
    homes: LayerHomes | None = None,
    stage: Stage | None = None,
) -> Parameters:
    """Allocate a decoder's uninitialised tensors for this rank of `group` and for `stage`."""
    new = Allocator(config.weight_format, dtype, device, group)
    num_ranks = 1 if group is None else group.num_ranks
    stage = stage or whole(len(config.layers))
    parts, vocab_size = shard_layers(config.layers, num_ranks), config.vocab_size
    where = {index: _allocators(new, homes, index - stage.first) for index in stage.layers}
    drafts = stage.is_last and config.draft_head is not None
    embeds = stage.is_first or (stage.is_last and config.tied) or drafts
    embedding = new.empty(vocab_size if embeds else 0, config.hidden_size)
    head_rows = vocabulary_rows(vocab_size, num_ranks) if stage.is_last else 0
    return Parameters(
        embedding=embedding,
        layers=tuple(parts[index].build(index, device) for index, (device, _) in where.items()),
        final_norm=config.final_norm.build("model.norm", config.hidden_size, new),
        head=embedding if config.tied else new.empty(head_rows, config.hidden_size),
        draft_head=_draft_head(config, new, num_ranks) if drafts else None,
        homes=homes,
        in_host={
            index: parts[index].build(index, host)
            for index, (_, host) in where.items()
            if host is not None
        },
        layer_inputs=None if config.layer_inputs is None else config.layer_inputs.build(new),
    )


def _draft_head(config: ModelConfig, new: Allocator, num_ranks: int) -> DraftHead | None:
    if config.draft_head is None:
        return None
    part = shard_head(config.draft_head, num_ranks)
    return part.build(len(config.layers), new)


def _allocators(
    new: Allocator, homes: LayerHomes | None, index: int
) -> tuple[Allocator, Allocator | None]:
    host = None if homes is None else homes.host(index)
    if homes is None or host is None:
        return new, None
    return replace(new, memory=homes.buffer(index)), replace(new, memory=host)


def checkpoint_tensors(parameters: Parameters) -> dict[str, CheckpointTensor]:
    """Return the tensors of a checkpoint by name. Their views cover every parameter once."""
    tables = {"model.embed_tokens.weight": parameters.embedding}
    if parameters.head is not parameters.embedding:
        tables["lm_head.weight"] = parameters.head
    # Only the last stage has an output head, and only the first stage has an embedding.
    tensors = [CheckpointTensor(name, table, 0) for name, table in tables.items() if len(table)]
    for module in parameters.modules():
        tensors += module.checkpoint_tensors()
    return {tensor.name: tensor for tensor in tensors}


@torch.inference_mode()
def dummy_parameters(
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    seed: int,
    group: RankGroup | None = None,
    homes: LayerHomes | None = None,
    stage: Stage | None = None,
) -> Parameters:
    """Make random parameters on `device`. They depend only on seed, dtype and device type.

    All ranks of a `group` get the same values, in their parts too: divided tensors are not parts of
    one random tensor. The layers of each stage get the same values as the first layers.
    """
    parameters = empty_parameters(config, dtype, device, group, homes, stage)
    generator = torch.Generator(device).manual_seed(seed)
    fill_matrix(parameters.embedding, generator)
    for index, module in enumerate(_made_on_device(parameters)):
        if group is not None:  # only the first rank keeps its biases
            generator.manual_seed(seed + 1 + index)
        module.fill(generator)
    if not config.tied:
        fill_matrix(parameters.head, generator)
    leave_biases_to_the_first(parameters, group)
    return parameters


def _made_on_device(parameters: Parameters) -> Iterator[Module]:
    """Yield modules in order, to be filled. Copy each offloaded layer to the host when filled."""
    for layer in parameters.layers:
        yield from walk(layer, Module)  # type: ignore[type-abstract]
        if parameters.homes is not None and layer.index in parameters.in_host:
            parameters.homes.keep(layer.index - parameters.layers[0].index)
    parts = parameters.layer_inputs, parameters.final_norm, parameters.draft_head
    yield from walk(parts, Module)  # type: ignore[type-abstract]


def leave_biases_to_the_first(parameters: Parameters, group: RankGroup | None) -> None:
    """Zero the experts' biases on all ranks but the first, because ranks' outputs are summed."""
    if group is None or not group.rank:
        return
    for experts in walk(parameters.kept, Experts):  # type: ignore[type-abstract]
        if experts.down.bias is not None:
            experts.down.bias.zero_()
