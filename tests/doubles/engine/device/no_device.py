"""Triton's driver for a missing device: kernels are compiled for the device but never run."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from triton.backends.compiler import GPUTarget


class NoDevice(threading.local):
    """A replacement of Triton's driver: a Hopper GPU on which no kernel runs.

    Each thread has its own current device, at first 0.
    """

    device = 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return self.device

    def set_current_device(self, device: int) -> None:
        self.device = device

    def get_current_stream(self, device: int) -> int:
        return 0

    def launcher_cls(self, source: Any, metadata: Any) -> None:
        return None

    @property
    def utils(self) -> Any:
        return SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": 1 << 18},
            # None as the module, because Triton 3.8 would unload a freed kernel's module with the
            # driver of that later moment.
            load_binary=lambda *binary: (None, 1, 0, 0, 1024),
        )
