"""The runner of several ranks: rank 0 sends each step to other ranks, then computes its own part.

A launch that fails on one rank leaves other ranks waiting for that rank. The launch cannot be tried
again, so any failure ends the engine, even a lack of device memory.

If this rank defers its launches, another rank may wait in a step for this rank, and read no
messages until then. Deferred steps must therefore be small compared with the ring. Before a large
step is sent, all deferred steps are launched.
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

# A step with more bytes counts as large. The number of deferred steps is at most the number of
# ranks, and a row takes some tens of bytes. Deferred small steps therefore fit the ring.
LARGE_BYTES = RING_BYTES // (4 * MOST_RANKS)


class NeverRaised(Exception):
    """The error type of a runner that never recovers from lack of device memory."""


@dataclass(frozen=True, slots=True)
class RanksRunner:
    """The runner of all ranks. Implements `Runner`. `own` is this rank's runner."""

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
        """Launch on this rank the steps that the other ranks have received."""
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
