"""All ranks of an engine. Rank 0 starts and ends the others.

    start    start processes, each with a ring and a socket | all ranks meet | all load weights,
             open pools and tiers, and agree on counts | each reports that it is ready
    end      `dismiss` lets the ranks write pending data to their disks; without it, they are killed

Elsewhere: the loading of a rank's part (`engine.follower`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

import torch

from engine.config import EngineConfig
from engine.models.errors import ModelError, UnsupportedModel
from engine.models.grid import RankGrid
from engine.ranks.collectives import RankLeft, Rendezvous
from engine.ranks.groups import RankGroups, meet
from engine.ranks.leader import OtherRanks, RankGone
from engine.ranks.messages import ENCODER, Close, NotStarted, Start, Started
from engine.ranks.process import END_S, RankProcess, RanksWatch
from engine.ranks.ring import RingWriter
from engine.system.line_writer import end_process
from storage.disk.wire import Channel
from storage.layouts.stage import Stage

START_PATIENCE_S = 600.0  # seconds to wait for other ranks at the start


class RankNotStarted(ModelError):
    """An error: another rank could not start, and the model's files are not the reason."""


class Team:
    """The other ranks, and the groups of all ranks. Used by one thread only."""

    def __init__(
        self, others: OtherRanks, processes: Sequence[RankProcess], watch: RanksWatch
    ) -> None:
        self._others = others
        self._processes = processes
        self._watch = watch
        self._groups: RankGroups | None = None
        self._is_dismissed = False

    @property
    def others(self) -> OtherRanks:
        """All ranks except this rank."""
        return self._others

    @property
    def groups(self) -> RankGroups:
        """The groups to which this rank belongs. Valid after `meet`."""
        assert self._groups is not None, "the ranks have not met"
        return self._groups

    def meet(self, place: Rendezvous, grid: RankGrid, stage: Stage, device: torch.device) -> None:
        """Wait for all ranks. Raises RankGone, and ModelError if a rank could not start."""
        with why_not_started(self):
            self._groups = meet(place, grid, stage, device)

    def await_started(self) -> None:
        """Wait until all ranks are ready for steps. Raises ModelError, RankGone."""
        for place in range(len(self.others)):
            self.others.wait_for(Started, place, START_PATIENCE_S)

    def dismiss(self) -> None:
        """End all ranks after their pending work. Raises RankGone."""
        self._watch.close()
        self._is_dismissed = True
        self.others.tell(Close())

    def close(self) -> None:
        """Wait for the ends of all ranks. Kill those that were not dismissed."""
        if not self._is_dismissed:
            self._watch.close()
            for process in self._processes:
                process.kill()
        deadline = time.monotonic() + END_S
        for process in self._processes:
            process.finish(deadline)
        self.others.close()
        if self._groups is not None:
            self._groups.close()


@contextmanager
def started_ranks(
    config: EngineConfig,
    grid: RankGrid,
    stage: Stage,
    device: torch.device,
    end: Callable[[int], None] = end_process,
) -> Iterator[Team | None]:
    """Start all ranks except rank 0, and meet them.

    Yield None if there is only one rank. This rank computes `stage` of `grid` on `device`. If a
    rank ends, `end` is called to end this process with an exit status. Raises ModelError if a rank
    cannot start.
    """
    if config.ranks.num_ranks == 1:
        yield None
        return
    with ExitStack() as opened:
        file = opened.enter_context(_rendezvous_file())
        team = opened.enter_context(closing(_started(config, file, end)))
        team.meet(Rendezvous(_path_of(file), 0, config.ranks.num_ranks), grid, stage, device)
        yield team


@contextmanager
def _rendezvous_file() -> Iterator[int]:
    """Open the file through which ranks find each other. It has no name: ranks inherit it."""
    file = os.memfd_create("ratoon-rendezvous", os.MFD_CLOEXEC)
    try:
        yield file
    finally:
        os.close(file)


def _path_of(file: int) -> str:
    return f"/proc/self/fd/{file}"


def _started(config: EngineConfig, rendezvous_file: int, end: Callable[[int], None]) -> Team:
    ring = RingWriter(config.ranks.num_ranks - 1)
    processes = [
        RankProcess(rank, (rendezvous_file, *ends.descriptors))
        for rank, ends in enumerate(ring.ends, 1)
    ]
    channels = [Channel(one.socket) for one in processes]
    for rank, (ends, channel) in enumerate(zip(ring.ends, channels, strict=True), 1):
        channel.send(ENCODER.encode(Start(config, rank, ends, _path_of(rendezvous_file))))
    return Team(OtherRanks(ring, channels), processes, RanksWatch(processes, end))


@contextmanager
def why_not_started(team: Team | None) -> Iterator[None]:
    """Replace an error of this rank by the reason why another rank failed to start, if any.

    Raises RankGone if a rank ended without giving a reason.
    """
    try:
        yield
    except (RuntimeError, RankGone) as error:
        for place, report in [] if team is None else team.others.take(NotStarted):
            kind = UnsupportedModel if report.is_refused else RankNotStarted
            raise kind(f"rank {place + 1}: {report.text}") from error
        if isinstance(error, RankLeft):
            raise RankGone(f"another rank is gone ({error})") from error
        raise
