"""The tensors of a safetensors file in memory, without a copy.

    8 bytes: N | N bytes: JSON, by name {dtype, shape, data_offsets} | data

As the format demands, the tensors fill the data without a gap or an overlap.
"""

from __future__ import annotations

from math import prod
from typing import Annotated

import msgspec
import torch
from msgspec import Meta
from torch import Tensor

from engine.models.adapters.adapter_files import WEIGHTS_FILE
from engine.models.adapters.errors import AdapterRefused

_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_SIZE_BYTES = 8
_Natural = Annotated[int, Meta(ge=0)]


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[_Natural]
    data_offsets: tuple[_Natural, _Natural]


def tensors_in(content: Tensor) -> dict[str, Tensor]:
    """Return the tensors as views of a file's bytes (uint8); raises AdapterRefused."""
    start = _SIZE_BYTES + int.from_bytes(content[:_SIZE_BYTES].numpy().tobytes(), "little")
    if not _SIZE_BYTES <= start <= len(content):
        raise AdapterRefused(f"{WEIGHTS_FILE} is shorter than its header")
    entries = _entries(content[_SIZE_BYTES:start].numpy().tobytes())
    data, end, tensors = content[start:], 0, dict[str, Tensor]()
    for name, entry in sorted(entries.items(), key=lambda one: one[1].data_offsets):
        dtype = _DTYPES.get(entry.dtype)
        if dtype is None:
            raise AdapterRefused(f"{name} is neither float32, bfloat16 nor float16")
        begin, (first, end) = end, entry.data_offsets
        size = prod(entry.shape) * dtype.itemsize
        if first != begin or end - first != size or end > len(data):
            raise AdapterRefused(f"{WEIGHTS_FILE}: {name} does not fill its place")
        part = data[first:end]
        if (start + first) % dtype.itemsize:
            part = part.clone()
        tensors[name] = part.view(dtype).view(entry.shape)
    if end != len(data):
        raise AdapterRefused(f"{WEIGHTS_FILE}: its tensors do not end at its end")
    return tensors


def _entries(header: bytes) -> dict[str, _Entry]:
    try:
        found = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        found.pop("__metadata__", None)
        return {name: msgspec.json.decode(one, type=_Entry) for name, one in found.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise AdapterRefused(f"{WEIGHTS_FILE}: its header is not one of tensors") from error
