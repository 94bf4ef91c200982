"""Copies of runs of KV blocks between the device's memory and the host's memory.

A run is a number of blocks that follow each other in both memories. One copy moves a whole run. On
a GPU each direction has its own stream, so copies in both directions run beside the steps:

    compute   step n ......| step n+1 ................| step n+2
    down           event --> copies, event                          device to host
    up             event --> copies, event                          host to device

Both streams wait for an event that is recorded after all earlier launches. So a copy down reads
what the steps have written, and a copy up overwrites nothing that a launched step still uses. A
step that reads copied blocks is launched once `query()` has returned True, or after a
`release_early`. In the second case only the late layers of the blocks are missing, and steps wait
for them (`layerwise_load`).
"""

from __future__ import annotations

import time
from enum import Enum
from typing import Protocol

import numpy as np
import torch

from storage.batched_copies import BatchedCopies, CopyPieces, open_batched_copies
from storage.errors import CopyFailed
from storage.layerwise_load import LayerwiseLoad
from storage.runs import Runs


class CopyDirection(Enum):
    """The direction of a copy: to a slower tier or to a faster tier."""

    DOWN = "down"
    UP = "up"


class CopyEvent(Protocol):
    """A point in a stream's work, such as a torch.cuda.Event."""

    def query(self) -> bool:
        """Return at once whether all work before the event is done."""

    def synchronize(self) -> None:
        """Wait until all work before the event is done."""


class Copying(CopyEvent, Protocol):
    """Copies under way: an event after the copies, and their duration."""

    @property
    def seconds(self) -> float:
        """The seconds from the start of the copies to their end, valid once `query` is True."""

    def release_early(self) -> bool:
        """Make later launches wait for the missing layers, and return whether this was possible.

        Returns False, and changes nothing, if too many bytes are missing or launches cannot wait.
        Must not be called again after True.
        """


class CopyStream(Protocol):
    """Copies of runs of blocks between two memories. Used by one thread only."""

    def record_event(self) -> CopyEvent:
        """Record an event after all work launched on the device so far."""

    def copy(self, direction: CopyDirection, runs: Runs, after: CopyEvent) -> Copying:
        """Copy all `runs`, at least one, after the event `after`. Raises CopyFailed."""


class Passed:
    """Copies that had ended when `copy` returned."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Return at once."""

    def release_early(self) -> bool:
        return False


class PlainCopies:
    """Copies by the CPU, for a device in host memory. They have ended when `copy` returns."""

    def record_event(self) -> CopyEvent:
        return Passed()

    def copy(self, direction: CopyDirection, runs: Runs, after: CopyEvent) -> Copying:  # noqa: ARG002
        began = time.perf_counter()
        for target, source in runs.views():
            target.copy_(source)
        return Passed(time.perf_counter() - began)


class OnStream:
    """Copies on a stream of a GPU between two events, which the device itself times."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._begun = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._done = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._early: torch.cuda.Event | None = None
        self._late: LayerwiseLoad | None = None
        self._begun.record(stream)

    def only_late(self, late: LayerwiseLoad) -> None:
        """Record that all copies queued from here on are of late layers."""
        self._early = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._early.record(self._stream)
        self._late = late

    def end(self) -> None:
        """Record the event after the copies, all of which have been queued."""
        self._done.record(self._stream)

    def query(self) -> bool:
        return bool(self._done.query())  # type: ignore[no-untyped-call]

    def synchronize(self) -> None:
        self._done.synchronize()

    def release_early(self) -> bool:
        if self._early is None or self._late is None:
            return False
        if not self._early.query():  # type: ignore[no-untyped-call]
            return False
        self._late.release_early(self._done)
        return True

    @property
    def seconds(self) -> float:
        return float(self._begun.elapsed_time(self._done)) / 1e3


class StreamCopies:
    """Copies on two streams of a GPU, one for each direction.

    If host memory is not pinned, calls wait for their copies. With `late` and `batched`, the late
    layers of blocks are copied to the device last.
    """

    def __init__(
        self,
        device: torch.device,
        late: LayerwiseLoad | None = None,
        batched: BatchedCopies | None = None,
    ) -> None:
        self._device = device
        self._late = late
        self._batched = batched
        self._streams = {to: torch.cuda.Stream(device) for to in CopyDirection}  # type: ignore[no-untyped-call]

    def record_event(self) -> CopyEvent:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def copy(self, direction: CopyDirection, runs: Runs, after: CopyEvent) -> Copying:
        """Queue all copies in few calls, because many calls would take as long as a step."""
        stream = self._streams[direction]
        if isinstance(after, torch.cuda.Event):
            stream.wait_event(after)
        copying = OnStream(stream)
        if self._batched is None:
            targets, sources = zip(*runs.views(), strict=True)
            with torch.cuda.stream(stream):
                torch._foreach_copy_(targets, sources, non_blocking=True)
        else:
            late = self._late if direction is CopyDirection.UP else None
            self._queue(self._batched, runs, copying, stream, late)
        copying.end()
        return copying

    def _queue(
        self,
        batched: BatchedCopies,
        runs: Runs,
        copying: OnStream,
        stream: torch.cuda.Stream,
        late: LayerwiseLoad | None,
    ) -> None:
        try:
            if late is None:
                batched.queue(pieces_of(runs), stream.cuda_stream)
            else:
                first, last = pieces_in_order(runs, late)
                batched.queue(first, stream.cuda_stream)
                copying.only_late(late)
                batched.queue(last, stream.cuda_stream)
        except CopyFailed:
            # wait for copies queued before the failure, so that they write nothing later
            stream.synchronize()
            raise


def copies_for(device: torch.device, late: LayerwiseLoad | None = None) -> CopyStream:
    """Return the copy streams to and from `device`."""
    if device.type != "cuda":
        return PlainCopies()
    return StreamCopies(device, late, open_batched_copies())


def pieces_of(runs: Runs, first_byte: int = 0, end_byte: int | None = None) -> CopyPieces:
    """Return a copy for each run, as addresses and sizes.

    With a byte range, every run is a single block, of which [first_byte, end_byte) is copied.
    """
    size = runs.targets.shape[1]
    behind = 0 if end_byte is None else size - end_byte
    return CopyPieces(
        (runs.targets.data_ptr() + runs.target_slots * size + first_byte).astype(np.uint64),
        (runs.sources.data_ptr() + runs.source_slots * size + first_byte).astype(np.uint64),
        (runs.counts * size - first_byte - behind).astype(np.uint64),
    )


def pieces_in_order(runs: Runs, late: LayerwiseLoad) -> tuple[CopyPieces, CopyPieces]:
    """Return the copies that must end before an early release, and the late layers' copies.

    The last blocks are cut in two pieces, as many blocks as `max_bytes` of `late` allows.
    """
    blocks, cut = runs.single(), late.bytes_before
    split = min(late.max_bytes // (runs.targets.shape[1] - cut), len(blocks))
    whole = pieces_of(blocks.part(slice(len(blocks) - split)))
    in_two = blocks.part(slice(len(blocks) - split, None))
    return _together(whole, pieces_of(in_two, 0, cut)), pieces_of(in_two, cut)


def _together(one: CopyPieces, other: CopyPieces) -> CopyPieces:
    return CopyPieces(
        np.concatenate([one.targets, other.targets]),
        np.concatenate([one.sources, other.sources]),
        np.concatenate([one.sizes, other.sizes]),
    )
