"""The runner of several ranks. Rank 0 sends each step to the others, then computes its part.

If a launch fails on one rank, the other ranks wait for that rank, and the launch cannot be tried
again. Any failure therefore ends the engine, even a lack of device memory.

If rank 0 defers its launches, another rank may wait in a step for rank 0, and cannot read messages
in the meantime. The deferred steps must therefore fit into the ring. Before a large step is sent,
all deferred steps are launched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.models.shards import MOST_RANKS
from engine.ranks.leader import OtherRanks
from engine.ranks.messages import Launch, LaunchForward, SampleRows, SkipRows, without_texts
from engine.ranks.ring import RING_BYTES
from engine.ranks.stage_runners import DeferringRunner
from engine.step import Bitmask, Forward, Launched, Runner, Step

# A step with more bytes than this is large. There are at most as many deferred steps as ranks, so
# deferred small steps fit into the ring.
LARGE_BYTES = RING_BYTES // (4 * MOST_RANKS)


class NeverRaised(Exception):
    """An error type that is never raised, for runners that cannot recover from lack of memory."""


@dataclass(frozen=True, slots=True)
class RanksRunner:
    """The runner of all ranks, on rank 0. Implements `Runner`. `own` is rank 0's runner."""

    own: Runner
    others: OtherRanks

    def launch(self, step: Step) -> Launched:
        """Launch a step on all ranks. Raises RankGone."""
        self._tell(Launch(without_texts(step)))
        return self.own.launch(step)

    def launch_forward(self, step: Step) -> Forward:
        """Launch a step without its sampling on all ranks. Raises RankGone."""
        self._tell(LaunchForward(without_texts(step)))
        return RanksForward(self.own.launch_forward(step), self.others)

    def catch_up(self) -> None:
        """Launch on rank 0 all steps that have been sent to the other ranks."""
        if isinstance(self.own, DeferringRunner):
            self.own.catch_up()

    def _tell(self, command: Launch | LaunchForward) -> None:
        rows = command.step.rows
        if sum(len(row.block_ids) + len(row.token_ids) for row in rows) > LARGE_BYTES:
            self.catch_up()
        self.others.tell(command)


@dataclass(frozen=True, slots=True)
class RanksForward:
    """The forward pass of all ranks. Implements `Forward`."""

    own: Forward
    others: OtherRanks

    def sample(self, allowed: Sequence[Bitmask | None]) -> Launched:
        self.others.tell(SampleRows())
        return self.own.sample(allowed)

    def skip(self) -> Launched:
        self.others.tell(SkipRows())
        return self.own.skip()
