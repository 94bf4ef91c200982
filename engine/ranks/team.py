"""All ranks of an engine, as rank 0 starts and ends them.

    start    processes, a ring and a socket for each | other machines come | all meet | weights,
             pools, tiers, on all at once, agreeing on counts | each says that it is ready
    end      `dismiss` tells the ranks to write what is left to their disks; else they are killed

Knows: who is started and in which order it ends. Does not know: what a rank loads (`serving`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial

from msgspec.structs import replace

from engine.config import EngineConfig
from engine.models.errors import ModelError, UnsupportedModel
from engine.ranks.collectives import Meeting, RankLeft
from engine.ranks.leader import OtherRanks, RankGone
from engine.ranks.meeting.groups import RankGroups, meet
from engine.ranks.meeting.place import MeetingPlace, meeting_place
from engine.ranks.messages import ENCODER, Close, Joined, NotStarted, Start, Started
from engine.ranks.process import END_S, ChildProcess, RankProcess, RanksWatch, RelayProcess
from engine.ranks.ring import RingWriter
from engine.startup.outline import ModelOutline
from storage.disk.wire import Channel

START_PATIENCE_S = 600.0  # with a rank that is slower than this one
RELAY_MARGIN_S = 30.0  # until the relay, which waits for other machines, has said that none came


class RankNotStarted(ModelError):
    """Another rank could not start, for a reason that is not in the model's files."""


class Team:
    """The ranks beside this one, and the groups of all. One owner thread."""

    def __init__(
        self,
        others: OtherRanks,
        processes: Sequence[ChildProcess],
        watch: RanksWatch,
        elsewhere: range,
    ) -> None:
        """`elsewhere` are the ranks on other machines."""
        self._others = others
        self._elsewhere = elsewhere
        self._processes = processes
        self._watch = watch
        self._groups: RankGroups | None = None
        self._is_dismissed = False

    @property
    def others(self) -> OtherRanks:
        """All ranks but this one."""
        return self._others

    @property
    def groups(self) -> RankGroups:
        """Those that this rank is in, once all have met."""
        assert self._groups is not None, "the ranks have not met"
        return self._groups

    def meet(
        self,
        place: Meeting,
        outline: ModelOutline,
        node_wait_s: float,
        awaits: Callable[[int], None],
    ) -> None:
        """Wait for all ranks, `node_wait_s` for other machines; `awaits` is called with each rank.

        Raises ModelError where one could not start or has not come, RankGone.
        """
        with why_not_started(self):
            for rank in self._elsewhere:
                awaits(rank)
                self.others.wait_for(Joined, rank - 1, node_wait_s + RELAY_MARGIN_S)
            self._groups = meet(place, outline.grid, outline.stage, outline.device)

    def await_started(self) -> list[Started]:
        """Wait until all ranks are ready for steps; what each says. Raises ModelError, RankGone."""
        places = range(len(self.others))
        return [self.others.wait_for(Started, place, START_PATIENCE_S) for place in places]

    def dismiss(self) -> None:
        """Have all ranks end, once they have done what they were told. Raises RankGone."""
        self._watch.close()
        self._is_dismissed = True
        self.others.tell(Close())

    def close(self) -> None:
        """Wait for the ranks' ends; those that were not dismissed are killed."""
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
    outline: ModelOutline,
    end: Callable[[int], None] = os._exit,
    waits_for: Callable[[str], None] = lambda _: None,
) -> Iterator[Team | None]:
    """Start the ranks from 1 on and meet them; None where there is one alone.

    `end` ends this process, after the death of a rank, with a status. `waits_for` is called with a
    line that says which other machine has not come. Raises ModelError where one cannot start, or
    has not come in time.
    """
    if config.num_ranks == 1:
        yield None
        return
    with ExitStack() as opened:
        place = opened.enter_context(meeting_place(config))
        team = opened.enter_context(closing(_started(config, outline, place, end)))
        meeting = Meeting(place.path, 0, config.num_ranks, host=place.host)
        team.meet(meeting, outline, config.node_wait_s, partial(_tell, config, waits_for))
        yield team


def _tell(config: EngineConfig, waits_for: Callable[[str], None], rank: int) -> None:
    node = rank // config.ranks_per_node
    waits_for(
        f"the engine waits for node {node} of {config.nnodes}: "
        f"ratoon node --node-rank {node} --join {config.node_address}"
    )


def _started(
    config: EngineConfig, outline: ModelOutline, place: MeetingPlace, end: Callable[[int], None]
) -> Team:
    """A process for each rank on this machine, and one for all that are on others."""
    here = range(1, config.ranks_per_node)
    elsewhere = range(config.ranks_per_node, config.num_ranks)
    ring = RingWriter(len(here) + bool(elsewhere))
    ranks = [
        RankProcess(rank, (*place.descriptors, *ends.descriptors))
        for rank, ends in zip(here, ring.ends, strict=False)
    ]
    relays = [RelayProcess(elsewhere, ring.ends[-1].descriptors)] if elsewhere else []
    sockets = [one.socket for one in ranks] + [one for relay in relays for one in relay.sockets]
    channels = [Channel(one) for one in sockets]
    # All ranks compute on the same kind of device, also where a machine has another one.
    resolved = replace(config, device="cuda" if outline.device.type == "cuda" else "cpu")
    for rank, channel in enumerate(channels, 1):
        ends = ring.ends[min(rank, len(ring.ends)) - 1]  # the relay's is the last
        channel.send(ENCODER.encode(Start(resolved, rank, ends, place.path, place.host)))
    processes = [*ranks, *relays]
    return Team(OtherRanks(ring, channels), processes, RanksWatch(processes, end), elsewhere)


@contextmanager
def why_not_started(team: Team | None) -> Iterator[None]:
    """Raise what another rank says of its failed start, in place of what it does to this one.

    RankGone where one has left without a word.
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
