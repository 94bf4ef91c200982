"""The slices of a model checkpoint's tensors that each rank holds.

    shard_dim    rows of the first rank | of the second | ...      None: all ranks have all rows

The sizes determine a rank's part: if the model's tensor is n times as long as the rank's tensor, it
has n parts. There are fewer parts than ranks if several ranks have the same KV head. If a tensor
has sections, such as queries, keys and values, a rank has a part of each section.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from engine.models.errors import UnsupportedModel
from engine.models.modules import CheckpointTensor


class TensorSlice(Protocol):
    """An interface to a tensor in a file. Indexing reads only the indexed part."""

    def get_shape(self) -> list[int]:
        """Return the tensor's shape."""
        ...

    def __getitem__(self, index: tuple[slice, ...]) -> Tensor:
        """Read a part of the tensor from the file."""
        ...


class TensorFile(Protocol):
    """An interface to an open safetensors file."""

    def get_tensor(self, name: str) -> Tensor:
        """Read a whole tensor."""
        ...

    def get_slice(self, name: str) -> TensorSlice:
        """Return a tensor that can be read in part."""
        ...


@dataclass(frozen=True, slots=True)
class _Cut:
    """The part `index` of `count` equal parts, of a dimension or of each of its sections."""

    dim: int
    index: int
    count: int
    sections: tuple[int, ...]

    def of(self, tensor: TensorSlice | Tensor, size: int) -> Tensor:
        """Read this part of a tensor whose size in `dim` is `size`.

        Read the full tensor if `size` is not divisible.
        """
        before = [slice(None)] * self.dim
        parts = [tensor[(*before, one)] for one in self._slices(size)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, self.dim)

    def _slices(self, size: int) -> list[slice]:
        unit = sum(self.sections) * self.count
        if any(size * one % unit for one in self.sections):
            return [slice(None)]
        sizes = [size * one // unit for one in self.sections]
        starts = [self.count * sum(sizes[:place]) for place in range(len(sizes))]
        return [
            slice(start + self.index * part, start + (self.index + 1) * part)
            for start, part in zip(starts, sizes, strict=True)
        ]


class ShardSlices:
    """The part of each tensor that `rank` of `num_ranks` holds.

    `whole` has the tensors of the model, and `parts` has the tensors of the rank, by name.
    """

    def __init__(
        self,
        whole: Mapping[str, CheckpointTensor],
        parts: Mapping[str, CheckpointTensor],
        rank: int,
        num_ranks: int,
    ) -> None:
        """Divide tensors. Raises UnsupportedModel if a tensor must be divided but has no rule."""
        self._cuts = {
            name: cut
            for name, part in parts.items()
            if (cut := _cut(whole[name], part, rank, num_ranks)) is not None
        }
        self._whole = whole
        self._left = whole.keys() - parts.keys()

    def has(self, name: str) -> bool:
        """Return whether the rank holds a part of this tensor, or the name is not in the model."""
        return name not in self._left

    def read(self, file: TensorFile, stored_name: str, name: str) -> Tensor:
        """Read the rank's part of the tensor `name`, which is stored under `stored_name`.

        A stored tensor that is not divisible, such as one scale for all rows, is read completely.
        """
        if name not in self._cuts:
            return file.get_tensor(stored_name)
        cut = self._cuts[name]
        stored = file.get_slice(stored_name)
        shape = stored.get_shape()
        if len(shape) <= cut.dim or prod(shape) == 1:
            return file.get_tensor(stored_name)
        return cut.of(stored, shape[cut.dim])

    def cut(self, name: str, value: Tensor) -> Tensor:
        """Return the rank's part of the tensor `name`. A single number is returned unchanged."""
        if name not in self._cuts or value.numel() == 1:
            return value
        cut = self._cuts[name]
        return cut.of(value, value.shape[cut.dim])

    def shard_dim(self, name: str) -> int | None:
        """Return the dimension of the tensor `name` that ranks divide, or None."""
        return self._whole[name].shard_dim

    def size_of_whole(self, name: str, dim: int) -> int:
        """Return the size of dimension `dim` of the full tensor `name` in the files."""
        return int(_sizes(self._whole[name])[dim])


def _cut(whole: CheckpointTensor, part: CheckpointTensor, rank: int, num_ranks: int) -> _Cut | None:
    """Return the cut that gives a rank's part, or None if the rank has the full tensor."""
    of_whole, of_part, dim = list(_sizes(whole)), list(_sizes(part)), part.shard_dim
    if of_whole == of_part:
        return None
    count = 0 if dim is None else of_whole[dim] // of_part[dim]
    if dim is not None:
        of_part[dim] *= count
    if dim is None or of_whole != of_part or num_ranks % count:
        raise UnsupportedModel(f"{part.name}: its weight format has no rule for shards")
    return _Cut(dim, rank * count // num_ranks, count, whole.sections or (1,))


def _sizes(tensor: CheckpointTensor) -> tuple[int, ...]:
    """Return the sizes in the files if known, because the tensor in memory may be padded."""
    return tensor.stored_shape or tuple(tensor.view.shape)
