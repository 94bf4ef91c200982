"""The header of a GGUF file: the model's fields, and the positions of its tensors.

    magic | version | number of tensors, of fields | fields | tensors' names, shapes, types, offsets
    padding to the alignment | data of the tensors

The file is not trusted. Every length is compared with the number of bytes left in the header.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from engine.models.errors import CheckpointError, UnsupportedModel
from engine.models.model_files import MAX_BYTES, opened

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_ALIGNMENT = 1 << 20
MAX_DIMS = 4  # maximum number of dimensions of a tensor in the format

_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?"}
_NUMBERS |= {10: "<Q", 11: "<q", 12: "<d"}
_TEXT, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in the file. `shape` has rows first. `begin` is in bytes from the file's start."""

    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    begin: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The fields and the tensors of the header, by name."""

    fields: dict[str, Any]
    tensors: dict[str, StoredTensor]


def read_header(path: Path) -> GgufHeader:
    """Read the header of `path`.

    Raises CheckpointError if the file is damaged or not a GGUF file, UnsupportedModel if its
    version or a type of weights is unknown.
    """
    try:
        with opened(path) as file:
            size = file.seek(0, 2)
            file.seek(0)
            return _Reader(file.read(MAX_BYTES), size).header()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except (struct.error, ValueError) as error:
        raise CheckpointError(f"{path} is no whole GGUF file: {error}") from error
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{path}: {error}") from error


class _Reader:
    def __init__(self, content: bytes, file_bytes: int) -> None:
        self._content = content
        self._file_bytes = file_bytes
        self._at = 0

    def header(self) -> GgufHeader:
        if self._take(4) != MAGIC:
            raise ValueError("it does not begin as one")
        version = self._number("<I")
        if version not in VERSIONS:
            raise UnsupportedModel(f"version {version} of GGUF: served are 2 and 3, little-endian")
        num_tensors, num_fields = self._number("<Q"), self._number("<Q")
        fields: dict[str, Any] = {}
        for _ in self._counted(num_fields):
            name = self._text()
            fields[name] = self._value(self._number("<I"))
        found = [self._tensor() for _ in self._counted(num_tensors)]
        alignment = fields.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 0 < alignment <= MAX_ALIGNMENT:
            raise ValueError(f"general.alignment is {alignment!r}")
        data = -(-self._at // alignment) * alignment
        return GgufHeader(fields, {name: self._placed(name, one, data) for name, one in found})

    def _placed(self, name: str, tensor: StoredTensor, data: int) -> StoredTensor:
        begin = data + tensor.begin
        if begin + tensor.num_bytes > self._file_bytes:
            raise ValueError(f"{name} ends behind the file's end")
        return StoredTensor(tensor.shape, tensor.kind, begin, tensor.num_bytes)

    def _tensor(self) -> tuple[str, StoredTensor]:
        name = self._text()
        dims = self._number("<I")
        if dims > MAX_DIMS:
            raise ValueError(f"{name} has {dims} dimensions")
        sizes = [self._number("<Q") for _ in range(dims)]
        kind, offset = self._number("<I"), self._number("<Q")
        if kind not in iter(GGMLQuantizationType):
            raise UnsupportedModel(f"{name} has weights of type {kind}, which is not known")
        known = GGMLQuantizationType(kind)
        block, block_bytes = GGML_QUANT_SIZES[known]
        if not sizes or 0 in sizes or sizes[0] % block:
            raise ValueError(f"{name} of shape {sizes} is not made of blocks of {block}")
        num_bytes = prod(sizes) // block * block_bytes
        return name, StoredTensor(tuple(reversed(sizes)), known, offset, num_bytes)

    def _value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind != _ARRAY:
            return self._number(self._form(kind))
        inner, count = self._number("<I"), self._number("<Q")
        if inner == _TEXT:
            return [self._text() for _ in self._counted(count)]
        form = self._form(inner)
        content = self._take(count * struct.calcsize(form))
        return list(struct.unpack(f"<{count}{form[1]}", content))

    def _form(self, kind: int) -> str:
        if kind not in _NUMBERS:
            raise ValueError(f"it has a field of type {kind}")
        return _NUMBERS[kind]

    def _counted(self, count: int) -> range:
        """Return a range of `count` items. Raises ValueError if too few bytes are left."""
        if count > len(self._content) - self._at:
            raise ValueError(f"{count} things are more than it has bytes")
        return range(count)

    def _number(self, form: str) -> Any:
        [value] = struct.unpack(form, self._take(struct.calcsize(form)))
        return value

    def _text(self) -> str:
        return self._take(self._number("<Q")).decode()

    def _take(self, size: int) -> bytes:
        taken = self._content[self._at : self._at + size]
        if len(taken) != size:
            raise ValueError("it ends within its header")
        self._at += size
        return taken
