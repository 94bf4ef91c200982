"""CUDA devices for a machine without GPUs."""

from __future__ import annotations


class FewGpus:
    """A double of `torch.cuda` with `count` devices. `broken` gives reasons for unusable ones."""

    def __init__(self, count: int, broken: int | None = None) -> None:
        self._count = count
        self._broken = broken
        self._current = 0

    def is_available(self) -> bool:
        return self._count > 0

    def device_count(self) -> int:
        return self._count

    def set_device(self, device: int, /) -> None:
        if device == self._broken:
            raise RuntimeError("CUDA error: device is busy\nCUDA kernel errors might be reported")
        self._current = device

    def current_device(self) -> int:
        return self._current
