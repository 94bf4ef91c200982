"""Copies between tiers that copy nothing but take time, on a simulated clock.

A block takes a fixed time in each direction.
"""

from __future__ import annotations

from collections import defaultdict, deque

from storage.move import Completed, Move, Plan, Tier
from tests.doubles.modelled.clock import Time

# Seconds of a block of 2 MiB, from `benchmarks.engine.tiers`. Copies ran at 53 GB/s, encrypted
# writes to disk at 0.6 GB/s.
HOST_BLOCK_S = 40e-6  # seconds to copy a block from device to host, or back
DISK_BLOCKS_PER_S = 300.0


class ModelledMover:
    """Copies between tiers that only take time. Copies in one direction run one after another."""

    def __init__(self, time: Time, disk_blocks_per_s: float) -> None:
        self._time = time
        self._disk_block_s = 1 / disk_blocks_per_s
        self._ways: dict[tuple[Tier, Tier], deque[tuple[float, Move]]] = defaultdict(deque)

    @property
    def pending(self) -> int:
        """The number of moves that have not been reported."""
        return sum(map(len, self._ways.values()))

    def start(self, plan: Plan) -> None:
        """Begin each move after the earlier moves of its direction."""
        for move in plan.moves:
            way = self._ways[move.source_tier, move.target_tier]
            to_disk = Tier.DISK in (move.source_tier, move.target_tier)
            begun = max(way[-1][0], self._time.now) if way else self._time.now
            way.append((begun + (self._disk_block_s if to_disk else HOST_BLOCK_S), move))

    def poll(self) -> Completed:
        """Return the moves that have ended by now."""
        done = []
        for way in self._ways.values():
            while way and way[0][0] <= self._time.now:
                done.append(way.popleft()[1])
        return Completed(done=done)

    def close(self) -> None:
        """Do nothing."""
