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
from engine.models.modules import Allocator, CheckpointTensor, Module, walk
from engine.models.norms import RmsNorm
from engine.models.weight_formats.plain import fill_matrix


@dataclass(frozen=True, slots=True)
class Parameters:
    """All tensors of a decoder. `head` is `embedding` itself where the config ties them."""

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


def empty_parameters(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Parameters:
    """Allocate a decoder's tensors, uninitialised."""
    new = Allocator(config.weight_format, dtype, device)
    embedding = new.empty(config.vocab_size, config.hidden_size)
    return Parameters(
        embedding=embedding,
        layers=tuple(layer.build(index, new) for index, layer in enumerate(config.layers)),
        final_norm=config.final_norm.build("model.norm", config.hidden_size, new),
        head=embedding if config.tied else new.empty(config.vocab_size, config.hidden_size),
    )


def checkpoint_tensors(parameters: Parameters) -> dict[str, CheckpointTensor]:
    """The tensors of a checkpoint, by name; the views cover every parameter once."""
    tensors = [CheckpointTensor("model.embed_tokens.weight", parameters.embedding, 0)]
    if parameters.head is not parameters.embedding:
        tensors.append(CheckpointTensor("lm_head.weight", parameters.head, 0))
    for module in parameters.modules():
        tensors += module.checkpoint_tensors()
    return {tensor.name: tensor for tensor in tensors}


@torch.inference_mode()
def dummy_parameters(
    config: ModelConfig, dtype: torch.dtype, device: torch.device, seed: int
) -> Parameters:
    """Random parameters, made on `device`; the same for the same seed, dtype and device type."""
    parameters = empty_parameters(config, dtype, device)
    generator = torch.Generator(device).manual_seed(seed)
    fill_matrix(parameters.embedding, generator)
    for module in parameters.modules():
        module.fill(generator)
    if not config.tied:
        fill_matrix(parameters.head, generator)
    return parameters
