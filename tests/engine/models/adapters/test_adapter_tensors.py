"""Tensors in place: as `safetensors` reads and refuses them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from engine.models.adapters.adapter_tensors import tensors_in
from engine.models.adapters.errors import AdapterRefused

TENSORS = {
    "a": torch.randn(3, 5).half(),
    "b": torch.randn(2, 3),
    "c": torch.randn(7).bfloat16(),
    "scalar": torch.tensor(2.5),
    "empty": torch.zeros(0, 4),
}
SAVED = save(TENSORS, metadata={"format": "pt"})


def in_place(content: bytes) -> dict[str, Tensor]:
    return tensors_in(torch.tensor(list(content), dtype=torch.uint8))


def file_of(header: Any, data: bytes = b"\0" * 8) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(first: Any = 0, end: Any = 8, dtype: str = "F32", shape: Any = (2,)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, end]}


def unaligned() -> bytes:
    """Return the file with a header that is one byte longer."""
    size = int.from_bytes(SAVED[:8], "little")
    return file_of(SAVED[8 : 8 + size] + b" ", SAVED[8 + size :])


@pytest.mark.parametrize("content", [SAVED, unaligned()])
def test_tensors_are_those_that_were_saved(content: bytes) -> None:
    found = in_place(content)
    assert found.keys() == TENSORS.keys()
    for name, one in TENSORS.items():
        assert found[name].dtype is one.dtype
        assert torch.equal(found[name], one)


def test_tensors_lie_in_the_file() -> None:
    content = torch.tensor(list(SAVED), dtype=torch.uint8)
    tensors_in(content)["b"].fill_(1.0)
    assert torch.equal(tensors_in(content)["b"], torch.ones(2, 3))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short",
        SAVED[:40],
        SAVED[:-1],
        SAVED + b"\0",
        (1 << 63).to_bytes(8, "little") + b"{}",
        file_of(b"[]"),
        file_of(b"not json"),
        file_of(b"\xff{}"),
        file_of(b"[" * 100_000),
        file_of({"x": entry()} | {"__metadata__": {}}, b"\0" * 7),
        file_of({"x": entry(4, 12)}, b"\0" * 12),
        file_of({"x": entry(), "y": entry(4, 12)}, b"\0" * 12),
        file_of({"x": entry(end=4)}),
        file_of({"x": entry(8, 0)}),
        file_of({"x": entry(-8, 0)}),
        file_of({"x": entry(0, 8.5)}),
        file_of({"x": entry(shape=(-2, -1))}),
        file_of({"x": entry(shape=(1 << 40, 1 << 40))}),
        file_of({"x": entry(shape=2)}),
        file_of({"x": {"dtype": "F32", "shape": [2]}}),
        file_of({"x": entry(dtype="F33")}),
    ],
)
def test_what_the_library_refuses_is_refused(content: bytes) -> None:
    assert in_place(file_of({"x": entry()}))["x"].shape == (2,), "the control"
    with pytest.raises((SafetensorError, ValueError, TypeError, KeyError)):
        load(content)
    with pytest.raises(AdapterRefused):
        in_place(content)
