"""The part of an adapter's matrices that one rank of several multiplies.

    a matrix divided by rows       all of A, and the rank's rows of B
    a matrix divided by columns    the rank's columns of A, and all of B
    a matrix of another stage      neither

The products of a matrix that is divided by columns are summed over ranks. Before the sum, each rank
adds the adapter's product for its own columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.models.checkpoints.shard_slices import ShardSlices
from engine.models.modules import CheckpointTensor, LinearConfig

COLUMNS = 1


@dataclass(frozen=True, slots=True)
class AdapterPart:
    """The part of each matrix that `rank` of `num_ranks` holds, by the matrix's name."""

    slices: ShardSlices
    num_ranks: int

    @classmethod
    def of(
        cls, whole: Iterable[LinearConfig], own: Iterable[LinearConfig], rank: int, num_ranks: int
    ) -> AdapterPart:
        """Find the rank's part by comparing the model's matrices with the rank's matrices."""
        return cls(ShardSlices(_by_name(whole), _by_name(own), rank, num_ranks), num_ranks)

    def has(self, name: str) -> bool:
        """Return whether the rank holds a part of the model's matrix `name`."""
        return self.slices.has(name)

    def cut(self, name: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rank's part of A (rank, in) and B (out, rank)."""
        if self.slices.shard_dim(name) == COLUMNS:
            return self.slices.cut(name, a).clone(), b
        # Copied, because a view would keep all of B in memory.
        return a, self.slices.cut(name, b).clone()

    def num_bytes(self, name: str, a: Tensor, b: Tensor) -> int:
        """Return the bytes of A and B on all ranks, summed."""
        divided, repeated = (a, b) if self.slices.shard_dim(name) == COLUMNS else (b, a)
        return divided.nbytes + self.num_ranks * repeated.nbytes


def _by_name(matrices: Iterable[LinearConfig]) -> dict[str, CheckpointTensor]:
    found = dict[str, CheckpointTensor]()
    for config in matrices:
        matrix = torch.empty(config.size_out, config.size_in, device="meta")
        dim = 0 if config.shards == "rows" else COLUMNS
        for (name, _), tensor in zip(config.rows, config.named("", matrix, dim), strict=True):
            found[name] = tensor
    return found
