"""Several ranks, as threads of one process that meet over gloo, or as processes."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from typing import Protocol, TypeVar

import torch

from engine.config import EngineConfig
from engine.follower.follower import Follower, RankParts
from engine.follower.serving import opened_rank
from engine.ranks.collectives import Collectives, Rendezvous
from engine.ranks.groups import RankGroups, meet
from engine.ranks.leader import OtherRanks
from engine.ranks.messages import ENCODER, Close, ScanDisk, Scanned, Start, Started
from engine.ranks.ring import RingReader, RingWriter
from engine.ranks.team import started_ranks
from engine.startup.metadata import read_metadata
from storage.disk.wire import Channel

T = TypeVar("T")
CPU = torch.device("cpu")
PATIENCE = timedelta(seconds=60)


@contextmanager
def rendezvous_file() -> Iterator[str]:
    """Return the path of an empty file that is removed when this process ends."""
    descriptor = os.memfd_create("ranks", os.MFD_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def on_ranks(num_ranks: int, compute: Callable[[Collectives], T]) -> list[T]:
    """Return the results of `compute` on each rank."""
    with rendezvous_file() as path:

        def run(rank: int) -> T:
            with closing(Collectives(Rendezvous(path, rank, num_ranks, PATIENCE), CPU)) as group:
                return compute(group)

        return together(num_ranks, run)


def together(num_ranks: int, run: Callable[[int], T]) -> list[T]:
    """Return the results of `run` for each rank, computed on concurrent threads."""
    with ThreadPoolExecutor(num_ranks) as threads:
        return list(threads.map(run, range(num_ranks)))


class StartedRanks(Protocol):
    """The ranks of an engine; `parts` are the other ranks' parts if they are in this process."""

    parts: list[RankParts]
    others: OtherRanks

    @property
    def groups(self) -> RankGroups: ...

    def await_started(self) -> None: ...

    def catch_up(self) -> None: ...

    def close(self) -> None: ...


class ProcessRanks:
    """The ranks of an engine as processes, started as in serving."""

    def __init__(self, config: EngineConfig, end: Callable[[int], None] = os._exit) -> None:
        """Start the ranks; `end` ends this process after another rank's death. Raises ModelError,
        RankGone.
        """
        self.parts: list[RankParts] = []
        self._opened = ExitStack()
        metadata = read_metadata(config)
        team = self._opened.enter_context(
            started_ranks(config, metadata.grid, metadata.stage, metadata.device, end)
        )
        assert team is not None
        self._team, self.others = team, team.others

    @property
    def groups(self) -> RankGroups:
        return self._team.groups

    def await_started(self) -> None:
        self._team.await_started()

    def catch_up(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._team.dismiss()
        self._opened.close()


class ThreadRanks:
    """The ranks of an engine; ranks other than 0 are threads of this process. Stands in for `Team`.

    `parts` are the other ranks' parts, once they have started.
    """

    def __init__(self, config: EngineConfig) -> None:
        """Start the other ranks, which load the model while this rank loads it."""
        num_ranks, metadata = config.ranks.num_ranks, read_metadata(config)
        self.parts: list[RankParts] = []
        self._rendezvous = os.memfd_create("ranks", os.MFD_CLOEXEC)
        place = f"/proc/self/fd/{self._rendezvous}"
        ring = RingWriter(num_ranks - 1)
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in ring.ends]
        self.others = OtherRanks(ring, [Channel(ours) for ours, _ in pairs])
        self._threads = ThreadPoolExecutor(num_ranks - 1)
        self._ends = [
            self._threads.submit(self._follow, Start(config, rank, ends, place), theirs)
            for rank, ((_, theirs), ends) in enumerate(zip(pairs, ring.ends, strict=True), 1)
        ]
        self._groups = meet(
            Rendezvous(place, 0, num_ranks, PATIENCE), metadata.grid, metadata.stage, CPU
        )

    @property
    def groups(self) -> RankGroups:
        """The groups that rank 0 is in."""
        return self._groups

    def await_started(self) -> None:
        """Wait until all ranks are ready."""
        for place in range(len(self.others)):
            self.others.wait_for(Started, place, PATIENCE.total_seconds())

    def catch_up(self) -> None:
        """Wait until the other ranks have handled all messages."""
        self.others.tell(ScanDisk())
        for place in range(len(self.others)):
            while not self.others.wait_for(Scanned, place, PATIENCE.total_seconds()).is_last:
                pass

    def close(self) -> None:
        """End the ranks one after the other."""
        self.others.tell(Close())
        for end in self._ends:
            end.result()
        self._threads.shutdown()
        self.others.close()
        self._groups.close()
        os.close(self._rendezvous)

    def _follow(self, start: Start, end: socket.socket) -> None:
        with end, ExitStack() as opened:
            channel = Channel(end)
            parts = opened_rank(start, opened)
            self.parts.append(parts)
            channel.send(ENCODER.encode(Started()))
            Follower(parts, RingReader(start.ring), channel).run()
