"""The CUDA driver's call for many copies: its arguments, and the handling of its result."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
import torch

from storage.batched_copies import BatchedCopies, CopyPieces, open_batched_copies
from storage.errors import CopyFailed


class Driver:
    """A double of the CUDA driver, which copies within this process and returns `code`."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.streams: list[int | None] = []

    def __call__(
        self,
        targets: ctypes.c_void_p,
        sources: ctypes.c_void_p,
        sizes: ctypes.c_void_p,
        count: ctypes.c_size_t,
        attributes: object,
        first: object,
        kinds: ctypes.c_size_t,
        stream: ctypes.c_void_p,
    ) -> int:
        del attributes, first
        assert kinds.value == 1
        self.streams.append(stream.value)
        if not self.code:
            numbers = ctypes.POINTER(ctypes.c_uint64)
            to, of, size = (ctypes.cast(one, numbers) for one in (targets, sources, sizes))
            for i in range(count.value):
                ctypes.memmove(to[i], of[i], size[i])
        return self.code


def pieces(source: np.ndarray, target: np.ndarray, size: int) -> CopyPieces:
    """Return copies of every second run of `size` bytes of `source`, to the same offsets of
    `target`.
    """
    at = np.arange(0, source.nbytes, 2 * size, dtype=np.uint64)
    sizes = np.full(len(at), size, np.uint64)
    return CopyPieces(at + np.uint64(target.ctypes.data), at + np.uint64(source.ctypes.data), sizes)


def test_all_pieces_go_in_one_call() -> None:
    source, target = np.arange(64, dtype=np.uint8), np.zeros(64, np.uint8)
    driver = Driver()
    BatchedCopies(driver).queue(pieces(source, target, 8), stream=77)
    assert driver.streams == [77]
    places = np.arange(64) // 8 % 2 == 0
    assert target[places].tolist() == source[places].tolist()
    assert not target[~places].any()


def test_nothing_to_copy_is_no_call() -> None:
    driver = Driver()
    nothing = np.zeros(0, np.uint64)
    BatchedCopies(driver).queue(CopyPieces(nothing, nothing, nothing), stream=77)
    assert driver.streams == []


def test_a_refusal_is_an_error_with_its_number() -> None:
    source, target = np.arange(64, dtype=np.uint8), np.zeros(64, np.uint8)
    with pytest.raises(CopyFailed, match="4 copies with error 101"):
        BatchedCopies(Driver(code=101)).queue(pieces(source, target, 8), stream=77)


def test_a_machine_without_the_driver_or_the_call_has_none(tmp_path: Path) -> None:
    assert open_batched_copies(str(tmp_path / "libcuda.so.1")) is None
    assert open_batched_copies("libc.so.6") is None  # this library exists, but has no such call


@pytest.mark.gpu
def test_the_driver_of_a_machine_with_a_gpu_copies_what_it_is_asked_to() -> None:
    copies = open_batched_copies()
    assert copies is not None
    source = torch.arange(64, dtype=torch.uint8).pin_memory()
    target = torch.zeros(64, dtype=torch.uint8, device="cuda")
    at = np.arange(0, 64, 16, dtype=np.uint64)  # offsets of every second run of 8 bytes
    sizes = np.full(len(at), 8, np.uint64)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    wanted = CopyPieces(at + np.uint64(target.data_ptr()), at + np.uint64(source.data_ptr()), sizes)
    copies.queue(wanted, stream.cuda_stream)
    stream.synchronize()
    numbers = torch.arange(64)
    assert target.cpu().tolist() == torch.where(numbers // 8 % 2 == 0, numbers, 0).tolist()
