"""The additional inputs of layers: per-layer embeddings (Gemma 4).

    token     -> its row of a table, scaled ---------------------------> + -> the layer's input
    embedding -> projection for all layers -> a norm for each layer -> +

At import, torch is needed only for types, as in `modules`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.models.layers.norms import RmsNorm, RmsNormConfig
from engine.models.modules import Allocator, CheckpointTensor, Linear, LinearConfig, Module
from engine.models.weight_formats.plain import PLAIN, fill_matrix

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from kernels.ops import Ops


@dataclass(frozen=True, slots=True)
class LayerInputsConfig:
    """The config of the inputs: `size` numbers for each of `num_layers` layers."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    size: int
    norm: RmsNormConfig

    @property
    def num_weights(self) -> int:
        """The number of weights of the table and the projection."""
        return (self.vocab_size + self.hidden_size) * self.num_layers * self.size

    def build(self, new: Allocator) -> LayerInputs:
        """Build the table, the projection (unquantised in every weight format) and the norm."""
        rows = (("model.per_layer_model_projection", self.num_layers * self.size),)
        projection = LinearConfig(
            rows, self.hidden_size, bias=False, shards="rows", in_parts=False, plain=True
        )
        table = new.empty(self.vocab_size, self.num_layers * self.size)
        return LayerInputs(
            config=self,
            table=Table("model.embed_tokens_per_layer", table),
            projection=PLAIN.linear(projection, new),
            norm=self.norm.build("model.per_layer_projection_norm", self.size, new),
        )


@dataclass(frozen=True, slots=True)
class Table(Module):
    """A table with a row for each token of the vocabulary: `rows` (V, N)."""

    name: str
    rows: Tensor

    def checkpoint_tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the table."""
        yield CheckpointTensor(f"{self.name}.weight", self.rows)

    def fill(self, generator: torch.Generator) -> None:
        fill_matrix(self.rows, generator)


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """The tensors that compute the inputs, for L layers of P numbers each."""

    config: LayerInputsConfig
    table: Table  # (V, L P)
    projection: Linear  # (L P, H)
    norm: RmsNorm  # (P,)

    def of(self, ops: Ops, token_ids: Tensor, embedded: Tensor) -> Tensor:
        """Compute the inputs (T, L, P) of tokens (T,) int64 with scaled embeddings (T, H)."""
        import torch  # imported here, so that configs can be read without torch

        size = self.config.size
        looked_up = torch.nn.functional.embedding(token_ids, self.table.rows).mul_(size**0.5)
        projected = self.projection.product(ops, embedded) * self.config.hidden_size**-0.5
        normed = self.norm.norm(ops, projected.view(-1, size))
        return (
            looked_up.add_(normed.view(looked_up.shape))
            .mul_(0.5**0.5)
            .view(len(token_ids), -1, size)
        )
