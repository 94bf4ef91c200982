"""The copies of KV blocks and recurrent states between tiers, concurrent with the engine's steps.

    complete   report ended copies to the cache               before a step is scheduled
    start      start the copies that the cache has planned    after the step is scheduled

A copy never conflicts with a launched step:

    - A copy to a lower tier reads only blocks and states of the tree. No step writes them any more.
    - A block that a copy reads or fills keeps its slot until the copy is complete
      (`prefix_cache.tree.residency`).
    - A load begins after all work launched so far, because an earlier step may still use its slot.
    - Loaded blocks are read only after their lease is ready. A lease may become ready before its
      load has ended. Steps then wait on the device for the missing bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.link.erasure import DiskErasure
from engine.tier_interfaces import BlockMover, Disk
from prefix_cache.cache import PrefixCache
from prefix_cache.leases.load_or_recompute import LoadOrRecompute
from storage.move import Completed, Move, Tier

_log = logging.getLogger(__name__)

COPY_WAIT_S = 0.001  # seconds between polls while the engine only waits for copies


@dataclass(slots=True)
class CopyCounts:
    """The numbers of copied blocks from one tier to another: copied, and being copied.

    A recurrent state counts as the number of blocks that would hold its bytes.
    """

    moves: int = 0
    failed: int = 0
    # The total seconds of the copies that have ended. Copies to and from the disk are not timed
    # individually, so for them this is the time with at least one copy under way.
    seconds: float = 0.0
    under_way: int = 0
    busy_since: float = 0.0


class TierCopies:
    """The copies between tiers of one engine. Used by one thread only."""

    def __init__(
        self, cache: PrefixCache, mover: BlockMover, disk: Disk | None, rates: LoadOrRecompute
    ) -> None:
        self.ways: dict[tuple[Tier, Tier], CopyCounts] = {}
        self.num_damaged = 0
        self.disk = disk
        self._cache = cache
        self._mover = mover
        self._rates = rates
        # Moves released before their end; steps wait for them on the device.
        self._released: set[Move] = set()
        self._generation = 0 if disk is None else disk.generation
        self._unnoted: list[str] = []
        # The owners to forget again after all copies, because a running copy may still write a
        # record of theirs.
        self._forget_again: dict[str, None] = {}

    @property
    def pending(self) -> int:
        """Count the moves that are not complete."""
        return self._mover.pending

    def up_from(self, tier: Tier) -> int:
        """Count the blocks being loaded from `tier` to the device."""
        way = self.ways.get((tier, Tier.DEVICE))
        return 0 if way is None else way.under_way

    def complete(self, now: float) -> bool:
        """Tell the cache which moves have ended or were released early.

        Return whether there were any.
        """
        if self.disk is None and not self._mover.pending:
            return False  # poll a disk even without moves: its process may have died
        ended = self._mover.poll()
        self._look_after_disk()
        self._cache.moves.release_early(ended.released)
        self._released.update(ended.released)
        self._released.difference_update(ended.done)
        if not (ended.done or ended.failed or ended.lost):
            return bool(ended.released)
        self._note_damaged(ended.lost)
        self._cache.moves.complete(done=ended.done, failed=ended.failed, lost=ended.lost)
        self._count(ended, now)
        return True

    def _note_damaged(self, lost: Iterable[Move]) -> None:
        damaged = self._blocks([move for move in lost if move.source_tier is Tier.HOST])
        if damaged:
            self.num_damaged += damaged
            _log.error(
                "%d blocks in host memory are not as they were copied there, and are forgotten: "
                "the memory, a copy or a stray write is at fault",
                damaged,
            )

    def complete_released(self, now: float) -> None:
        """Tell the cache which moves have ended among those that were released before their end.

        Call before a step is settled. The step waited for these moves, and its blocks enter the
        tree after the moves' blocks.
        """
        if self._released:
            self.complete(now)

    def start(self, now: float) -> None:
        """Start the copies that the cache has planned."""
        plan = self._cache.moves.take_plan()
        if not (plan.moves or plan.erase):
            self._note_flushes()
            return
        for direction, moves in _by_direction(plan.moves).items():
            way = self.ways.setdefault(direction, CopyCounts())
            if not way.under_way:
                way.busy_since = now
            way.under_way += self._blocks(moves)
        self._mover.start(plan)

    def restore(self, now: float) -> int:
        """Restore an earlier engine's records on disk to the cache. Return the number of blocks."""
        if self.disk is None:
            return 0
        blocks = self._cache.restart.restore(self.disk.scan(), now=now)
        self._look_after_disk()
        return blocks

    def forget_owner(self, owner: str) -> None:
        """Make the records of `owner` on disk unreadable.

        A running copy may still write a record under a new key, so the owner is forgotten again
        after all copies.
        """
        if self.disk is not None:
            self.disk.forget_owner(owner)
            if self._mover.pending:
                self._forget_again[owner] = None

    def erasure(self, owner: str) -> DiskErasure:
        """Return how far the records of a forgotten owner are erased on disk."""
        if self.disk is None:
            return "none"
        if owner in self._forget_again or self.disk.is_forgetting(owner):
            return "under way"
        return "key destroyed" if self.disk.encrypts else "records erased"

    def erase_unlisted(self) -> None:
        """Erase the records on disk that are not in the cache."""
        if self.disk is not None:
            self.disk.erase_unlisted()

    def flushed(self, flushes: Iterable[str]) -> None:
        """Note on disk that flushes are done, once the copies of flushed blocks have ended."""
        if self.disk is not None:
            self._unnoted += flushes

    def _note_flushes(self) -> None:
        if self.disk is None or self._mover.pending:
            return
        for owner in self._forget_again:
            self.disk.forget_owner(owner)
        self._forget_again = {}
        if self._unnoted:
            self.disk.note_flushes(self._unnoted)
            self._unnoted = []

    def _look_after_disk(self) -> None:
        if self.disk is not None and self.disk.generation != self._generation:
            self._generation = self.disk.generation
            self._cache.moves.forget_disk()

    def _count(self, ended: Completed, now: float) -> None:
        timed: dict[tuple[Tier, Tier], float] = {}
        for copied in ended.copied:
            ends = copied.source, copied.target
            timed[ends] = timed.get(ends, 0.0) + copied.seconds
        failed = _by_direction([*ended.failed, *ended.lost])
        done = _by_direction(ended.done)
        for direction in done.keys() | failed.keys():
            way = self.ways[direction]
            arrived, missed = (self._blocks(some.get(direction, ())) for some in (done, failed))
            seconds, way.busy_since = timed.get(direction, now - way.busy_since), now
            way.seconds += seconds
            way.moves += arrived
            way.failed += missed
            way.under_way -= arrived + missed
            if direction[1] is Tier.DEVICE and direction[0] in self._rates.copies:
                # The time of a failed copy counts too, so a tier that fails is measured as slow.
                self._rates.copies[direction[0]].add(max(arrived, 1), seconds)

    def _blocks(self, moves: Sequence[Move]) -> int:
        states = sum(move.is_state for move in moves)
        return len(moves) + states * (self._rates.state_blocks - 1)


def _by_direction(moves: Sequence[Move]) -> dict[tuple[Tier, Tier], list[Move]]:
    groups: dict[tuple[Tier, Tier], list[Move]] = {}
    for move in moves:
        groups.setdefault((move.source_tier, move.target_tier), []).append(move)
    return groups
