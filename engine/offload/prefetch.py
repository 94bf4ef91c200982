"""The prefetch of offloaded layers from host memory to their device buffers.

    copies     | layer 3 | layer 7 |            | layer 11 |
    compute    | 0  1  2 |wait| 3  4  5  6 | 7 ..... 10 |wait| 11 | head, sampling
                                  ^ layer 3's buffer is free: layer 11 may be copied

The first offloaded layers are copied when a step begins. Each later one is copied as soon as the
layer that is in its buffer has been computed. A step waits for every copy that it began, so that a
CUDA graph can capture copies and kernels together.

Some kernels are launched early (`kernels.launch.dependent_launch`), and read weights before the
previous kernel has ended. This is safe here: the first kernel of a layer begins only after the
copy, and the layer's other kernels are launched only after the first has begun. When the layer's
last kernel has ended, no kernel reads the buffer any more.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from engine.offload.host_layers import HostLayers
from engine.offload.placement import NUM_BUFFERS


class Copies(Protocol):
    """An interface to copies of bytes to the device. Used by one thread only."""

    def start(self, index: int, target: Tensor, source: Tensor) -> None:
        """Start to copy the weights of a layer, after all earlier launches."""
        ...

    def wait(self, index: int) -> None:
        """Make later launches wait for the layer's weights."""
        ...


class PlainLayerCopies:
    """Synchronous copies, for the CPU."""

    def start(self, index: int, target: Tensor, source: Tensor) -> None:  # noqa: ARG002
        target.copy_(source)

    def wait(self, index: int) -> None:
        """Return immediately, because all copies have ended."""


class StreamLayerCopies:
    """Copies on a CUDA stream of their own, concurrent with kernels. Graphs can capture them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._arrived: dict[int, torch.cuda.Event] = {}

    def start(self, index: int, target: Tensor, source: Tensor) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        if index not in self._arrived:
            self._arrived[index] = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._arrived[index].record(self._stream)

    def wait(self, index: int) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._arrived[index])


class LayerPrefetch:
    """The prefetch of each offloaded layer into its buffer. Implements `WeightPrefetch`."""

    def __init__(self, layers: HostLayers, copies: Copies) -> None:
        order = layers.placement.layers
        self._layers = layers
        self._copies = copies
        self._first = order[:NUM_BUFFERS]
        self._own = frozenset(order)
        self._following = dict(zip(order, order[NUM_BUFFERS:], strict=False))

    def begin(self) -> None:
        for index in self._first:
            self._start(index)

    def wait(self, index: int) -> None:
        if index in self._own:
            self._copies.wait(index)

    def computed(self, index: int) -> None:
        following = self._following.get(index)
        if following is not None:
            self._start(following)

    def _start(self, index: int) -> None:
        self._copies.start(index, self._layers.target(index), self._layers.runs[index])


def prefetch_of(layers: HostLayers) -> LayerPrefetch:
    """Make the prefetch of these layers, with the copies for their device."""
    device = layers.buffers[0].device
    return LayerPrefetch(
        layers, StreamLayerCopies(device) if device.type == "cuda" else PlainLayerCopies()
    )
