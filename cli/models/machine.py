"""The resources of this machine: cores, free memory and GPUs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gateway.config import cores
from storage.free_memory import host_free_bytes

VISIBLE = "CUDA_VISIBLE_DEVICES"
_DRIVER = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True, slots=True)
class Machine:
    """The resources of a machine that its engines divide."""

    num_cores: int
    free_bytes: int
    gpus: tuple[str, ...]  # names of the GPUs in CUDA_VISIBLE_DEVICES

    def shared_by(self, engines: int) -> Machine:
        """Return the machine with only one engine's share of the free memory."""
        return Machine(self.num_cores, self.free_bytes // engines, self.gpus)


def machine() -> Machine:
    """Return the present resources of this machine."""
    visible = os.environ.get(VISIBLE)
    if visible is None:
        count = len(list(_DRIVER.iterdir())) if _DRIVER.is_dir() else 0
        gpus = tuple(map(str, range(count)))
    else:
        gpus = tuple(one.strip() for one in visible.split(",") if one.strip())
    return Machine(cores(), host_free_bytes(), gpus)
