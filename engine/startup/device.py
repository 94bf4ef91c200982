"""The choice of the device and the dtype, from the config and the hardware."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from engine.config import DeviceName, DtypeName
from engine.models.errors import DeviceUnavailable
from storage.free_memory import host_free_bytes

FP8_CHIP = (8, 9)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class CudaDevices(Protocol):
    """An interface to the CUDA devices that this process sees. `torch.cuda` implements it."""

    def is_available(self) -> bool:
        """Return whether there are CUDA devices."""
        ...

    def device_count(self) -> int:
        """Return the number of CUDA devices."""
        ...

    def set_device(self, device: int, /) -> None:
        """Make a device the current device. Raises RuntimeError."""
        ...

    def current_device(self) -> int:
        """Return the current device."""
        ...


def resolve_device(
    name: DeviceName, rank: int = 0, num_ranks: int = 1, cuda: CudaDevices = torch.cuda
) -> torch.device:
    """Return the device that `name` means. `auto` is the first CUDA device, else the CPU.

    With several ranks, each gets the CUDA device with its number, and makes it the current device.
    Raises DeviceUnavailable if CUDA is absent, if there are too few devices, or if the device
    cannot be used.
    """
    has_cuda = cuda.is_available()
    if name == "cuda" and not has_cuda:
        raise DeviceUnavailable("device 'cuda' was asked for, but torch sees no CUDA device")
    if name == "cpu" or not has_cuda:
        return torch.device("cpu")
    if num_ranks > 1:
        if cuda.device_count() < num_ranks:
            raise DeviceUnavailable(
                f"{num_ranks} ranks need a CUDA device each: torch sees {cuda.device_count()}"
            )
        try:
            cuda.set_device(rank)
        except RuntimeError as error:
            why = str(error).partition("\n")[0]
            raise DeviceUnavailable(f"CUDA device {rank} cannot be used: {why}") from error
    return torch.device("cuda", cuda.current_device())


def resolve_dtype(
    name: DtypeName, device: torch.device, checkpoint_dtype: str | None
) -> torch.dtype:
    """Return the dtype that `name` means. `auto`: float32 on the CPU, the files' dtype on CUDA."""
    if name != "auto":
        return DTYPES[name]
    if device.type == "cpu":
        return torch.float32
    return DTYPES[checkpoint_dtype or "bfloat16"]


def check_fp8(chip: tuple[int, int], uses: Sequence[str]) -> None:
    """Raise DeviceUnavailable if `uses`, the settings with fp8, needs fp8 and the GPU has none.

    `chip` is the device's compute capability, or (0, 0) for a CPU, which can compute fp8.
    """
    if uses and (0, 0) < chip < FP8_CHIP:
        have, need = (".".join(str(part) for part in one) for one in (chip, FP8_CHIP))
        raise DeviceUnavailable(
            f"{' and '.join(uses)}: fp8 needs compute capability {need}, the device has {have}"
        )


def usual_threads(num_cores: int) -> int:
    """Return the number of CPU threads. It leaves one core to the gateway and its clients.

    Threads wait for each other after every operation, so a thread that shares its core with another
    process delays all threads. On two busy cores, 2,048 tokens of the embedded model took 1.1 s
    with one thread and 4 to 20 s with two threads.
    """
    return max(1, num_cores - 1)


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype in the spelling of configs."""
    return next(name for name, known in DTYPES.items() if known == dtype)


def host_bytes(most: int | None) -> int:
    """Return the bytes of host memory that may be allocated now. The maximum is `most`."""
    free = host_free_bytes()
    return free if most is None else min(free, most)


def free_bytes(device: torch.device, most_of_host: int | None = None) -> int:
    """Return the bytes that may be allocated on `device`. `most_of_host` is a CPU's maximum."""
    if device.type != "cuda":
        return host_bytes(most_of_host)
    free, _ = torch.cuda.mem_get_info(device)
    # Include memory of freed tensors: torch's allocator keeps it, and can allocate it again.
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
