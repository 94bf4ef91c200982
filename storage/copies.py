"""Copies of runs of blocks between the device's memory and the host's.

A run is a number of blocks that follow each other on both sides: one copy, however many they
are. On a GPU each direction has a stream of its own, so both go on at once and beside the steps:

    compute   step n ......| step n+1 ................| step n+2
    down           mark ---> copies, event                          device to host
    up             mark ---> copies, event                          host to device

Both wait for the mark, an event behind all that was launched before: so a copy down reads what the
steps have written, and a copy up overwrites nothing that a step on its way still uses. The compute
stream waits for nothing. A step that reads copied blocks is launched only after `query()` has
returned True: the copy is over by then, and a kernel sees all memory written before its launch.

Knows: tensors and streams. Does not know: slots, tiers or plans (`tier_mover`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import torch
from torch import Tensor


class Direction(Enum):
    """Whether a copy goes to a slower tier or to a faster one."""

    DOWN = "down"
    UP = "up"


class Event(Protocol):
    """A point in a stream's work. torch.cuda.Event is one."""

    def query(self) -> bool:
        """Whether all work before it is done. Never waits."""

    def synchronize(self) -> None:
        """Wait until it is."""


class Copying(Event, Protocol):
    """Copies on their way: an event behind them, and what they took."""

    @property
    def seconds(self) -> float:
        """Seconds from the start of the first copy to the end of the last; once `query` is True."""


class Copies(Protocol):
    """How runs get from one memory to the other. One owner thread."""

    def mark(self) -> Event:
        """An event behind all that has been launched on the device so far."""

    def copy(self, direction: Direction, runs: Sequence[Run], after: Event) -> Copying:
        """Copy all of `runs`, at least one, behind `after`; or none: raises CopyFailed."""


class Run(tuple[Tensor, Tensor]):
    """(target, source): blocks as (count, block_bytes) uint8, contiguous on both sides."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Passed:
    """A `Copying` of work that was done when the call returned."""

    seconds: float = 0.0

    def query(self) -> bool:
        """Return True."""
        return True

    def synchronize(self) -> None:
        """Return at once."""


class PlainCopies:
    """Copies within one memory, done when the call returns. For the CPU."""

    def mark(self) -> Event:
        """Everything is done."""
        return Passed()

    def copy(self, direction: Direction, runs: Sequence[Run], after: Event) -> Copying:  # noqa: ARG002
        """Copy now."""
        began = time.perf_counter()
        for target, source in runs:
            target.copy_(source)
        return Passed(time.perf_counter() - began)


class OnStream:
    """Work on a stream of a GPU between two events, which the device itself times."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._begun = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._done = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._begun.record(stream)

    def end(self) -> None:
        """All of the work has been queued."""
        self._done.record(self._stream)

    def query(self) -> bool:
        """Whether it is done. Never waits."""
        return bool(self._done.query())  # type: ignore[no-untyped-call]

    def synchronize(self) -> None:
        """Wait until it is."""
        self._done.synchronize()

    @property
    def seconds(self) -> float:
        """What it took; once it is done."""
        return float(self._begun.elapsed_time(self._done)) / 1e3


class StreamCopies:
    """Copies on two streams of a GPU, one a direction. Unpinned host memory makes calls wait."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams = {to: torch.cuda.Stream(device) for to in Direction}  # type: ignore[no-untyped-call]

    def mark(self) -> Event:
        """Return an event behind all that was launched on the current stream."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def copy(self, direction: Direction, runs: Sequence[Run], after: Event) -> Copying:
        """Queue all copies, in one call to torch: a loop here would cost a step's time."""
        stream = self._streams[direction]
        targets, sources = zip(*runs, strict=True)
        if isinstance(after, torch.cuda.Event):
            stream.wait_event(after)
        copying = OnStream(stream)
        with torch.cuda.stream(stream):
            torch._foreach_copy_(targets, sources, non_blocking=True)
        copying.end()
        return copying


def copies_for(device: torch.device) -> Copies:
    """The way to copy to and from `device`."""
    return StreamCopies(device) if device.type == "cuda" else PlainCopies()


def runs_of(targets: Tensor, sources: Tensor, pairs: Iterable[tuple[int, int]]) -> list[Run]:
    """The copies of these (source, target) pairs of slots, neighbours joined into one run."""
    runs: list[tuple[int, int, int]] = []
    for source, target in sorted(pairs):
        if runs and (source, target) == (runs[-1][0] + runs[-1][2], runs[-1][1] + runs[-1][2]):
            runs[-1] = (*runs[-1][:2], runs[-1][2] + 1)
        else:
            runs.append((source, target, 1))
    return [Run((targets[t : t + n], sources[s : s + n])) for s, t, n in runs]
