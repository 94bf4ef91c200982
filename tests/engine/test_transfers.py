"""Host arrays become tensors with the same numbers, shapes and dtypes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.transfers import ALIGNMENT, HostArray, byte_offsets, record_event, to_device

ARRAYS: list[HostArray] = [
    np.arange(5, dtype=np.int64),
    np.arange(7, dtype=np.int32),
    np.zeros(0, dtype=np.float32),
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.array([True, False]),
]


@pytest.mark.parametrize("kind", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_arrays_arrive(kind: str) -> None:
    tensors = to_device(ARRAYS, torch.device(kind))
    for array, tensor in zip(ARRAYS, tensors, strict=True):
        assert tensor.device.type == kind
        assert tensor.shape == array.shape
        np.testing.assert_array_equal(tensor.cpu().numpy(), array)
        assert tensor.cpu().numpy().dtype == array.dtype


def test_on_the_cpu_arrays_are_shared() -> None:
    array = np.zeros(3, dtype=np.float32)
    (tensor,) = to_device([array], torch.device("cpu"))
    array[1] = 5.0
    assert tensor[1] == 5.0


def test_offsets_are_aligned_and_do_not_overlap() -> None:
    offsets = byte_offsets(ARRAYS)
    assert all(offset % ALIGNMENT == 0 for offset in offsets)
    for array, start, end in zip(ARRAYS, offsets, offsets[1:], strict=False):
        assert start + array.nbytes <= end


def test_the_cpu_needs_no_mark() -> None:
    assert record_event(torch.device("cpu")) is None
