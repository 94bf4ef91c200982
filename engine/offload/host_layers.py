"""The offloaded layers: their pinned host memory, and their buffers on the device.

    host memory    | layer 3 | layer 7 | layer 11 |        contiguous bytes for each layer
    device         | buffer: 3, 11 | buffer: 7    |        each buffer holds one layer at a time

Each offloaded layer is built twice (`LayerHomes`): in host memory, where it is loaded, and in a
buffer, where steps read it. In both, the layer's tensors occupy contiguous bytes (`memory`).

Elsewhere: the time of copies (`prefetch`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.models.errors import NotEnoughMemory
from engine.offload.memory import ALIGNMENT, RunMemory
from engine.offload.placement import GIB, NUM_BUFFERS, Placement
from storage.errors import PoolDoesNotFit
from storage.pools.host_pool import HostPool


class HostLayers:
    """The memory of the offloaded layers that a placement has chosen.

    Implements `LayerHomes`. `runs` has the bytes of each layer in host memory, by its index.
    `buffers` are on the device. One owner thread fills the host memory before the first step. Steps
    only read it.
    """

    def __init__(
        self, placement: Placement, layer_bytes: Sequence[int], device: torch.device
    ) -> None:
        """Allocate memory for layers of `layer_bytes`.

        Raises NotEnoughMemory if the host has too little.
        """
        self.placement = placement
        self._pool = _pinned(placement.host_bytes, device)
        sizes = [layer_bytes[index] for index in placement.layers]
        runs = self._pool.tensor.view(-1).split(sizes)  # type: ignore[no-untyped-call]
        self.runs: dict[int, Tensor] = dict(zip(placement.layers, runs, strict=True))
        self.buffers = [
            # Zeros, because the warm-up computes with the buffers before any layer is copied to
            # them.
            torch.zeros(placement.buffer_bytes, dtype=torch.uint8, device=device)
            for _ in range(NUM_BUFFERS)
        ]

    @property
    def num_bytes(self) -> int:
        """The bytes allocated on the device."""
        return NUM_BUFFERS * self.placement.buffer_bytes

    @property
    def seconds(self) -> float:
        """The seconds that allocating and pinning the host memory took."""
        return self._pool.seconds

    def host(self, index: int) -> RunMemory | None:
        return RunMemory(self.runs[index]) if index in self.runs else None

    def buffer(self, index: int) -> RunMemory:
        return RunMemory(self.target(index))

    def target(self, index: int) -> Tensor:
        """Return the bytes of a layer's buffer."""
        place = self.placement.layers.index(index)
        return self.buffers[place % NUM_BUFFERS][: len(self.runs[index])]

    def keep(self, index: int) -> None:
        self.runs[index].copy_(self.target(index))

    def close(self) -> None:
        """Free the host memory. Call after the last step. May be repeated."""
        device = self.buffers[0].device
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # wait for running copies, which read the host memory
        self.runs = {}
        self._pool.close()


def _pinned(num_bytes: int, device: torch.device) -> HostPool:
    """Allocate host memory, make all its pages present, and pin it for a GPU."""
    try:
        return HostPool(num_bytes // ALIGNMENT, ALIGNMENT, device)
    except PoolDoesNotFit as error:
        raise NotEnoughMemory(
            f"cpu_offload_gb: {num_bytes / GIB:.2f} GiB of weights do not fit host memory: {error}"
        ) from error
