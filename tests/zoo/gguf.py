"""A small reader of GGUF files: what they say of a model, and its tensors as numbers.

Blocks of 32 weights share a scale, and in Q4_1 a least value.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
_SCALARS = dict(enumerate(("<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?")))
_SCALARS |= {10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_BLOCK = 32


@dataclass(frozen=True)
class _Tensor:
    shape: tuple[int, ...]  # rows first
    kind: int
    offset: int


@dataclass(frozen=True)
class Gguf:
    """A file that was read."""

    fields: dict[str, Any]
    tensors: dict[str, Floats]


class _Reader:
    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.at = 0

    def scalar(self, form: str) -> Any:
        [value] = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def text(self) -> str:
        size = self.scalar("<Q")
        self.at += size
        return bytes(self.data[self.at - size : self.at]).decode()

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            inner, count = self.scalar("<I"), self.scalar("<Q")
            return [self.value(inner) for _ in range(count)]
        return self.scalar(_SCALARS[kind])

    def tensor(self) -> tuple[str, _Tensor]:
        name, dimensions = self.text(), self.scalar("<I")
        shape = [self.scalar("<Q") for _ in range(dimensions)]
        return name, _Tensor(tuple(reversed(shape)), self.scalar("<I"), self.scalar("<Q"))


def read_gguf(path: Path) -> Gguf:
    """Read a file of version 3; ValueError for another one, or a kind of weights not known here."""
    reader = _Reader(memoryview(path.read_bytes()))
    if reader.scalar("<I") != int.from_bytes(b"GGUF", "little") or reader.scalar("<I") != 3:
        raise ValueError(f"{path} is no GGUF file of version 3")
    count, fields = reader.scalar("<Q"), {}
    for _ in range(reader.scalar("<Q")):
        name, kind = reader.text(), reader.scalar("<I")
        fields[name] = reader.value(kind)
    tensors = dict(reader.tensor() for _ in range(count))
    aligned = fields.get("general.alignment", 32)
    data = reader.data[-(-reader.at // aligned) * aligned :]
    return Gguf(fields, {name: _numbers(data, one) for name, one in tensors.items()})


def _numbers(data: memoryview, tensor: _Tensor) -> Floats:
    if tensor.kind not in _KINDS:
        raise ValueError(f"weights of kind {tensor.kind}")
    size, read = _KINDS[tensor.kind]
    blocks = int(np.prod(tensor.shape)) // (1 if size == 4 else _BLOCK)
    raw = np.frombuffer(data, np.uint8, blocks * size, tensor.offset).reshape(blocks, size)
    return read(raw).reshape(tensor.shape)


def _f32(raw: NDArray[np.uint8]) -> Floats:
    return raw.view(np.float32)


def _q8_0(raw: NDArray[np.uint8]) -> Floats:
    weights: Floats = _half(raw, 0) * raw[:, 2:].view(np.int8)
    return weights


def _q4_1(raw: NDArray[np.uint8]) -> Floats:
    nibbles = np.concatenate([raw[:, 4:] & 15, raw[:, 4:] >> 4], axis=1)
    weights: Floats = _half(raw, 0) * nibbles + _half(raw, 2)
    return weights


def _half(raw: NDArray[np.uint8], at: int) -> Floats:
    """A number of two bytes of each block, to be multiplied with its weights."""
    return raw[:, at : at + 2].copy().view(np.float16).astype(np.float32)


# The bytes of a block (of a number, where there are none), and what they mean.
_KINDS: dict[int, tuple[int, Callable[[NDArray[np.uint8]], Floats]]] = {
    0: (4, _f32),
    3: (20, _q4_1),
    8: (34, _q8_0),
}
