"""The GPUs known by name, for plans.

Data sheets give a GPU's maximum rates. Prefill and decode reach only a share of these rates, which
was measured on an H200. Other GPUs are assumed to reach the same share.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import msgspec

from cli.errors import BadSetting
from cli.plan.machine import MachineModel
from cli.plan.options import MemoryFlags


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU's data sheet: dense bf16 TFLOP/s, memory GB/s, and the GB/s that copies reach."""

    memory_gib: float
    tflops: float
    memory_gb_s: float
    host_gb_s: float


_PCIE_4, _PCIE_5 = 24.0, 48.0
REFERENCE = "h200"
GPUS: Mapping[str, Gpu] = {
    "b200": Gpu(180, 2250, 8000, _PCIE_5),
    "h200": Gpu(141, 989, 4800, _PCIE_5),
    "h100": Gpu(80, 989, 3350, _PCIE_5),
    "a100-80": Gpu(80, 312, 2039, _PCIE_4),
    "a100-40": Gpu(40, 312, 1555, _PCIE_4),
    "l40s": Gpu(48, 362, 864, _PCIE_4),
    "l4": Gpu(24, 121, 300, _PCIE_4),
    "a10": Gpu(24, 125, 600, _PCIE_4),
    "rtx-5090": Gpu(32, 209, 1792, _PCIE_5),
    "rtx-4090": Gpu(24, 165, 1008, _PCIE_4),
    "rtx-3090": Gpu(24, 71, 936, _PCIE_4),
}


def on_gpu(
    name: str | None, memory: MemoryFlags, machine: MachineModel, given: Collection[str]
) -> tuple[MemoryFlags, MachineModel]:
    """Set the flags to a named GPU's data, except the flags in `given`.

    If `name` is None, the flags stay unchanged. Raises BadSetting for an unknown name.
    """
    if name is None:
        return memory, machine
    gpu, reference, reached = GPUS.get(name.lower()), GPUS[REFERENCE], MachineModel()
    if gpu is None:
        names = ", ".join(GPUS)
        raise BadSetting("--gpu", f"{name!r} is none of {names}; --gpu-gib takes any size")
    rates = {
        "tflops": gpu.tflops * reached.tflops / reference.tflops,
        "device_gb_s": gpu.memory_gb_s * reached.device_gb_s / reference.memory_gb_s,
        "host_gb_s": gpu.host_gb_s,
    }
    if "gpu_gib" not in given:
        memory = replace(memory, gpu_gib=gpu.memory_gib)
    wanted = {field: rate for field, rate in rates.items() if field not in given}
    return memory, msgspec.structs.replace(machine, **wanted)
