"""Several ranks in one process: a thread each, that meet over gloo."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch

from engine.config import EngineConfig
from engine.ranks.collectives import Collectives, Meeting
from engine.ranks.leader import OtherRanks
from engine.ranks.messages import ENCODER, Close, Start, Started
from engine.ranks.ring import RingWriter
from engine.ranks.serving import serve
from storage.disk.wire import Channel

T = TypeVar("T")
CPU = torch.device("cpu")
PATIENCE = timedelta(seconds=60)


@contextmanager
def meeting_place() -> Iterator[str]:
    """The path of an empty file that goes with this process."""
    descriptor = os.memfd_create("ranks", os.MFD_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def on_ranks(num_ranks: int, compute: Callable[[Collectives], T]) -> list[T]:
    """What `compute` returns on each rank."""
    with meeting_place() as path, ThreadPoolExecutor(num_ranks) as threads:

        def run(rank: int) -> T:
            return compute(Collectives(Meeting(path, rank, num_ranks, PATIENCE), CPU))

        return list(threads.map(run, range(num_ranks)))


class ThreadRanks:
    """The ranks of an engine whose others are threads of this process; as `Team`."""

    def __init__(self, config: EngineConfig) -> None:
        """Start them; they load when this one does."""
        num_ranks = config.tensor_parallel
        self._meeting = os.memfd_create("ranks", os.MFD_CLOEXEC)
        ring = RingWriter(num_ranks - 1)
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in ring.ends]
        self.others = OtherRanks(ring, [Channel(ours) for ours, _ in pairs])
        self._threads = ThreadPoolExecutor(num_ranks - 1)
        self._ends = []
        for rank, ((ours, theirs), ends) in enumerate(zip(pairs, ring.ends, strict=True), 1):
            ours.send(ENCODER.encode(Start(config, rank, ends, self._meeting)))
            self._ends.append(self._threads.submit(_serve, theirs))
        meeting = Meeting(f"/proc/self/fd/{self._meeting}", 0, num_ranks, PATIENCE)
        self.group = Collectives(meeting, CPU)

    def await_started(self) -> None:
        """Wait until all are ready."""
        for place in range(len(self.others)):
            self.others.wait_for(Started, place, PATIENCE.total_seconds())

    def close(self) -> None:
        """End them in peace."""
        self.others.tell(Close())
        assert [one.result() for one in self._ends] == [0] * len(self._ends)
        self._threads.shutdown()
        self.others.close()
        self.group.close()
        os.close(self._meeting)


def _serve(end: socket.socket) -> int:
    with end:
        return serve(Channel(end))
