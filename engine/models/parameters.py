"""A decoder's tensors, and under which names checkpoints keep them.

Query, key and value projections are one matrix here, gate and up projections another, so that
a layer does four matrix products. `checkpoint_tensors` maps every name of a checkpoint to the
part of a parameter that it fills; loading and checking both go by that map.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.models.config import ModelConfig
from engine.models.layers import DecoderLayer
from engine.models.modules import Allocator, CheckpointTensor, Experts, Module, walk
from engine.models.norms import RmsNorm
from engine.models.shards import RankGroup, shard_layers, vocabulary_rows
from engine.models.weight_formats.plain import fill_matrix
from storage.stage import Stage, whole


@dataclass(frozen=True, slots=True)
class Parameters:
    """All tensors of a decoder. `head` is `embedding` itself where the config ties them.

    Of several ranks each has its part, and of a head that is not tied its rows. A stage has its own
    layers; of a table that it does not read it has no rows.
    """

    embedding: Tensor  # (V, H)
    layers: tuple[DecoderLayer, ...]
    final_norm: RmsNorm
    head: Tensor  # (V, H)

    def tensors(self) -> Iterator[Tensor]:
        """Every parameter once."""
        yield self.embedding
        yield from walk((self.layers, self.final_norm), Tensor)
        if self.head is not self.embedding:
            yield self.head

    def modules(self) -> Iterator[Module]:
        """The matrices and norms, in order."""
        yield from walk((self.layers, self.final_norm), Module)  # type: ignore[type-abstract]

    @property
    def num_bytes(self) -> int:
        """Bytes held on the device."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors())


def empty_parameters(
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    group: RankGroup | None = None,
    stage: Stage | None = None,
) -> Parameters:
    """Allocate a decoder's tensors, or this rank's of a `group` and a stage's, uninitialised."""
    new = Allocator(config.weight_format, dtype, device, group)
    num_ranks = 1 if group is None else group.num_ranks
    stage = stage or whole(len(config.layers))
    layers, vocab_size = shard_layers(config.layers, num_ranks), config.vocab_size
    embeds = stage.is_first or (stage.is_last and config.tied)
    embedding = new.empty(vocab_size if embeds else 0, config.hidden_size)
    head_rows = vocabulary_rows(vocab_size, num_ranks) if stage.is_last else 0
    return Parameters(
        embedding=embedding,
        layers=tuple(layers[index].build(index, new) for index in stage.layers),
        final_norm=config.final_norm.build("model.norm", config.hidden_size, new),
        head=embedding if config.tied else new.empty(head_rows, config.hidden_size),
    )


def checkpoint_tensors(parameters: Parameters) -> dict[str, CheckpointTensor]:
    """The tensors of a checkpoint, by name; the views cover every parameter once."""
    tables = {"model.embed_tokens.weight": parameters.embedding}
    if parameters.head is not parameters.embedding:
        tables["lm_head.weight"] = parameters.head
    # A stage before the last has no head, and one after the first embeds nothing.
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
    stage: Stage | None = None,
) -> Parameters:
    """Random parameters, made on `device`; the same for the same seed, dtype and device type.

    What every rank of a `group` has whole is the same on all; and so are their parts of the rest,
    and of stages the layers in the same places.
    """
    parameters = empty_parameters(config, dtype, device, group, stage)
    generator = torch.Generator(device).manual_seed(seed)
    fill_matrix(parameters.embedding, generator)
    for index, module in enumerate(parameters.modules()):
        if group is not None:  # one rank alone has biases that others have not
            generator.manual_seed(seed + 1 + index)
        module.fill(generator)
    if not config.tied:
        fill_matrix(parameters.head, generator)
    leave_biases_to_the_first(parameters, group)
    return parameters


def leave_biases_to_the_first(parameters: Parameters, group: RankGroup | None) -> None:
    """Clear what other ranks than the first would add to the sum of experts' products again."""
    if group is None or not group.rank:
        return
    for experts in walk(parameters.layers, Experts):  # type: ignore[type-abstract]
        if experts.down.bias is not None:
            experts.down.bias.zero_()
