"""The tensors of a GGUF file, unpacked, by the decoder's names.

Packed weights are converted to float32 when they are read, one tensor at a time
(`gguf.dequantize`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.models.errors import CheckpointError
from engine.models.gguf.families import (
    OUTSIDE_LAYERS,
    ROPE_FACTORS,
    GgufFamily,
    family_of,
    one_number,
)
from engine.models.gguf.header import GgufHeader, StoredTensor, read_header
from engine.models.gguf.numbers import read_numbers

_IN_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


@dataclass(frozen=True, slots=True)
class _Place:
    """The location of a decoder's tensor in the file.

    `expert` is the index in a stored tensor of all experts, if it is one. `heads` is the number of
    heads if the rows of heads are ordered in pairs. With `less_one`, 1 is subtracted from the
    stored numbers.
    """

    stored: StoredTensor
    expert: int | None = None
    heads: int | None = None
    less_one: bool = False


class GgufFile:
    """An open GGUF file with the interface of `safetensors.safe_open`."""

    def __init__(self, path: Path, device: torch.device) -> None:
        """Open a GGUF file. Raises CheckpointError, UnsupportedModel."""
        self._device = device
        header = read_header(path)
        self._places = dict(_places(header, family_of(header)))
        self._bytes = np.memmap(path, np.uint8, "r")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del self._bytes

    def keys(self) -> list[str]:
        """Return the tensors' names."""
        return list(self._places)

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each tensor in the file."""
        return {name: place.stored.num_bytes for name, place in self._places.items()}

    def get_tensor(self, name: str) -> Tensor:
        """Return a tensor as float32 on the device. Raises CheckpointError, UnsupportedModel."""
        place = self._places[name]
        rows = read_numbers(self._bytes, place.stored, place.expert)
        if place.heads is not None:
            rows = unpaired(name, rows, place.heads)
        if place.less_one:
            rows = rows - 1
        return torch.tensor(rows, device=self._device)

    def get_slice(self, name: str) -> GgufSlice:
        """Return a tensor whose parts can be read by indexing."""
        return GgufSlice(self, name, self._places[name])


@dataclass(frozen=True, slots=True)
class GgufSlice:
    """A tensor whose parts can be read. Packed weights are always unpacked completely."""

    file: GgufFile
    name: str
    place: _Place

    def get_shape(self) -> list[int]:
        """Return the tensor's shape. The tensor of one expert has no dimension for experts."""
        return list(self.place.stored.shape[0 if self.place.expert is None else 1 :])

    def __getitem__(self, index: tuple[slice, ...]) -> Tensor:
        return self.file.get_tensor(self.name)[index]


def unpaired(name: str, rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Reorder `rows` (heads x head size, ...) from pairs to halves.

    Afterwards a head has the first numbers of all its pairs, then the second numbers. Raises
    CheckpointError.
    """
    if len(rows) % (2 * heads):
        raise CheckpointError(f"{name} has {len(rows)} rows for {heads} heads")
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _places(header: GgufHeader, family: GgufFamily) -> Iterator[tuple[str, _Place]]:
    of_model = f"{header.fields['general.architecture']}.attention."
    counts = {"attn_q": f"{of_model}head_count", "attn_k": f"{of_model}head_count_kv"}
    heads = {part: one_number(header.fields.get(name), name) for part, name in counts.items()}
    heads["attn_k"] = heads["attn_k"] or heads["attn_q"]
    for name, stored in header.tensors.items():
        in_layer = _IN_LAYER.fullmatch(name)
        layer, part, kind = in_layer.groups() if in_layer else ("", *_outside(name))
        names = family.in_layer if in_layer else OUTSIDE_LAYERS
        own = f"{names.get(part, part)}.{kind}"
        place = _Place(
            stored,
            heads=heads.get(part) if family.pairs else None,
            less_one=family.norms_less_one and "norm" in part,
        )
        before = f"model.layers.{layer}." if in_layer else ""
        if "{expert}" in own:
            for expert in range(stored.shape[0]):
                yield before + own.format(expert=expert), replace(place, expert=expert)
        elif name != ROPE_FACTORS:  # the rope factors are in the config instead
            yield before + own, place


def _outside(name: str) -> tuple[str, str]:
    part, _, kind = name.rpartition(".")
    return part, kind
