"""The device and the dtype follow flags and machine, or a one-line error refuses the start."""

from __future__ import annotations

import pytest
import torch

from engine.models.errors import DeviceUnavailable
from engine.startup.device import (
    check_fp8,
    dtype_name,
    free_bytes,
    resolve_device,
    resolve_dtype,
    usual_threads,
)
from tests.doubles.engine.device.few_gpus import FewGpus

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("chip", "uses"),
    [
        ((0, 0), ["fp8 weights"]),
        ((8, 9), ["fp8 weights"]),
        ((9, 0), ["kv_dtype fp8"]),
        ((8, 0), []),
    ],
)
def test_fp8_on_what_computes_it(chip: tuple[int, int], uses: list[str]) -> None:
    check_fp8(chip, uses)


def test_fp8_on_an_older_chip_is_refused_by_what_uses_it() -> None:
    with pytest.raises(DeviceUnavailable, match=r"fp8 weights and kv_dtype fp8: .*8\.9.* has 8\.0"):
        check_fp8((8, 0), ["fp8 weights", "kv_dtype fp8"])


def test_cpu_is_always_there() -> None:
    assert resolve_device("cpu") == CPU


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_absent_cuda_is_refused_and_auto_falls_back() -> None:
    with pytest.raises(DeviceUnavailable):
        resolve_device("cuda")
    assert resolve_device("auto") == CPU


def test_each_rank_has_the_gpu_of_its_number() -> None:
    assert resolve_device("cuda", 3, 4, FewGpus(4)) == torch.device("cuda", 3)
    with pytest.raises(DeviceUnavailable, match=r"^4 ranks need a CUDA device each: torch sees 3$"):
        resolve_device("cuda", 0, 4, FewGpus(3))


def test_a_gpu_that_cannot_be_used_is_named_in_one_line() -> None:
    gpus = FewGpus(4, broken=2)
    with pytest.raises(DeviceUnavailable, match=r"^CUDA device 2 .*: CUDA error: device is busy$"):
        resolve_device("cuda", 2, 4, gpus)
    assert resolve_device("cuda", 1, 4, gpus) == torch.device("cuda", 1)


@pytest.mark.parametrize(
    ("device", "checkpoint", "expected"),
    [
        (CPU, "bfloat16", torch.float32),
        (CPU, None, torch.float32),
        (CUDA, "bfloat16", torch.bfloat16),
        (CUDA, "float16", torch.float16),
        (CUDA, "float32", torch.float32),
        (CUDA, None, torch.bfloat16),
    ],
)
def test_auto_dtype_follows_the_device(
    device: torch.device, checkpoint: str | None, expected: torch.dtype
) -> None:
    assert resolve_dtype("auto", device, checkpoint) == expected


def test_a_named_dtype_is_taken_on_any_device() -> None:
    assert resolve_dtype("float16", CPU, "bfloat16") == torch.float16
    assert resolve_dtype("float32", CUDA, "bfloat16") == torch.float32
    assert [dtype_name(d) for d in (torch.float32, torch.bfloat16)] == ["float32", "bfloat16"]


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (4, 3), (16, 15)])
def test_a_core_is_left_to_the_others(cores: int, threads: int) -> None:
    assert usual_threads(cores) == threads


def test_free_memory_of_a_cpu_is_the_hosts() -> None:
    assert 2**24 < free_bytes(CPU) < 2**48
