"""The last layers of blocks that are loaded: they may arrive while the first are computed with.

A step reads the keys of its layers one after the other. So it may begin when the first three
quarters of every block are there, and waits before the layer that is the first of the last quarter:

    up        | blocks, whole | first layers of the others | their late layers |
    promise                                                ^
    compute                                                | layers 0 to 23 .....|wait| 24 to 31 |

From a promise on everything that is launched waits, on the device, for what the promise was about.
It is given when so little is missing that it comes while a step reads the weights of its first
layers: so the other rows of that step are hardly held up. The wait is recorded in CUDA graphs as
one for an external event, and each replay waits for what that event was recorded behind last.

Knows: layers, bytes, events. Does not know: blocks or copies (`copies`), or what a layer does.
"""

from __future__ import annotations

import torch

LATE_PART = 4  # a quarter of the layers may be late


class LateLayers:
    """The late layers of one pool on a GPU. One owner thread.

    `first`: the layer before which to `wait`. `max_bytes`: at most so many may be missing when
    loads are promised.
    """

    def __init__(self, num_layers: int, max_bytes: int, device: torch.device) -> None:
        """`num_layers` is LATE_PART or more."""
        self.first = num_layers - num_layers // LATE_PART
        self.max_bytes = max_bytes
        self._num_layers = num_layers
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._arrived = torch.cuda.Event(external=True)  # type: ignore[no-untyped-call]
        self._arrived.record(self._stream)  # nothing to wait for yet

    def bytes_before(self, block_bytes: int) -> int:
        """Bytes of a block up to its late layers."""
        return block_bytes // self._num_layers * self.first

    def promise(self, arrived: torch.cuda.Event) -> None:
        """Let all that is launched from now on wait for `arrived`, and for all promised before."""
        self._stream.wait_event(arrived)
        self._arrived.record(self._stream)

    def wait(self) -> None:
        """Let what is launched on the current stream from here on wait for all that is promised."""
        torch.cuda.current_stream(self._device).wait_event(self._arrived)


def late_layers_of(num_layers: int, max_bytes: int, device: torch.device) -> LateLayers | None:
    """The late layers of a pool on `device`; None where copies are not streams' or layers few."""
    if device.type != "cuda" or num_layers < LATE_PART:
        return None
    return LateLayers(num_layers, max_bytes, device)
