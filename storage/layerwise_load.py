"""Layer-wise loading: a step may start while the last layers of its blocks are being copied.

A step reads the keys of its layers in order. So a step may start when the first three quarters of
every block have arrived. The step then waits before the first layer of the last quarter:

    up        | whole blocks  | split blocks' first layers | their late layers |
    release                                                ^
    compute                                                | layers 0 to 23 .....|wait| 24 to 31 |

After an early release, every launched step waits on the device for the late layers. A load is
released early once the missing bytes will arrive while a step reads the weights of its first
layers. So the wait hardly delays the other requests in that step. CUDA graphs capture a wait for an
external event. Each replay waits for all copies before the event's last recording.
"""

from __future__ import annotations

import torch

from storage.layouts.kv_layout import KvLayout

LATE_PART = 4  # number of parts of the layers; only the last part may be late


class LayerwiseLoad:
    """The late layers of a block pool on a GPU, which are loaded last. Used by one thread only.

    Steps `wait` before the late layer `first`. A block has `bytes_before` bytes before that layer.
    Up to `max_bytes` bytes may be missing when a load is released early.
    """

    def __init__(self, layout: KvLayout, max_bytes: int, device: torch.device) -> None:
        """Prepare to split loads of blocks of `layout`, which has at least LATE_PART layers."""
        self.first = layout.num_layers - layout.num_layers // LATE_PART
        self.bytes_before = layout.offset(self.first)
        self.max_bytes = max_bytes
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._arrived = torch.cuda.Event(external=True)  # type: ignore[no-untyped-call]
        self._arrived.record(self._stream)

    def release_early(self, arrived: torch.cuda.Event) -> None:
        """Make later launches wait for `arrived` and for earlier loads released early."""
        self._stream.wait_event(arrived)
        self._arrived.record(self._stream)

    def wait(self) -> None:
        """Make later launches on the current stream wait for all loads that were released early."""
        torch.cuda.current_stream(self._device).wait_event(self._arrived)


def layerwise_load_of(
    layout: KvLayout, max_bytes: int, device: torch.device
) -> LayerwiseLoad | None:
    """Return the late layers of a block pool.

    Returns None without CUDA or with too few layers.
    """
    if device.type != "cuda" or layout.num_layers < LATE_PART:
        return None
    return LayerwiseLoad(layout, max_bytes, device)
