"""The tiers of several ranks, which look like those of one rank to the tree on rank 0.

Each rank has a slice of every block, in its own tiers, at the same slots. Rank 0 sends each plan to
all ranks, and all ranks carry it out. A move has ended when it has ended on all ranks. It succeeded
if it succeeded on all ranks, is lost if one rank has lost the block, and else failed.

    disk     at a start, only records that all ranks have are used. Others are erased, but kept if
             a rank's disk is new, because that rank's old disk may be attached again
    flush    done if all ranks have done it, else repeated
    lost     if one rank loses all its records, the records of all ranks count as lost

The tree sees only these joined results.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from engine.ranks.leader import OtherRanks
from engine.ranks.messages import (
    DIGEST_BYTES,
    MOST_FLUSHES,
    CopyBlocks,
    DiskReport,
    FlushesDone,
    ForgetOwner,
    ListFlushes,
    MovesEnded,
    NoteFlushes,
    ScanDisk,
    Scanned,
)
from engine.ranks.runner import RanksRunner
from engine.step import Runner
from engine.tier_interfaces import BlockMover, Disk, LowerTiers
from storage.disk.stats import DiskProcessStats, DiskState
from storage.move import BlockRecord, Completed, Copied, Move, Plan

SCAN_PATIENCE_S = 60.0
# The states of a disk from best to worst. The joined disk has the state of the worst disk.
_STATES = (DiskState.UP, DiskState.STARTING, DiskState.DOWN, DiskState.OFF)

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Open:
    """A running move. It has not ended yet on `left` ranks."""

    number: int
    left: int
    is_failed: bool = False
    is_lost: bool = False


@dataclass(slots=True)
class RanksMover:
    """A mover of blocks on all ranks. Implements `BlockMover`. `own` is rank 0's mover."""

    own: BlockMover
    others: OtherRanks
    catch_up: Callable[[], None]  # launches on rank 0 the steps already sent to other ranks
    _moves: dict[int, Move] = field(default_factory=dict)
    _open: dict[Move, _Open] = field(default_factory=dict)
    _num_started: int = 0
    # Moves that have ended on rank 0 but not on all ranks.
    _copied: list[Copied] = field(default_factory=list)

    @property
    def pending(self) -> int:
        """Count the started moves that `poll` has not returned yet."""
        return len(self._open)

    def start(self, plan: Plan) -> None:
        """Start a plan on all ranks. Raises RankGone."""
        for number, move in enumerate(plan.moves, self._num_started):
            self._moves[number] = move
            self._open[move] = _Open(number, 1 + len(self.others))
        self._num_started += len(plan.moves)
        self.catch_up()
        self.others.tell(CopyBlocks.of(plan))
        self.own.start(plan)

    def poll(self) -> Completed:
        """Return the moves that have ended on all ranks. Loads are not released earlier."""
        ended = self.own.poll()
        completed = Completed()
        self._copied += ended.copied
        self._note(ended.done, ended.failed, ended.lost, completed)
        for _, report in self.others.take(MovesEnded):
            done, failed, lost = (
                [self._moves[number] for number in numbers]
                for numbers in (report.done, report.failed, report.lost)
            )
            self._note(done, failed, lost, completed)
        ways = {(move.source_tier, move.target_tier) for move in completed.done}
        completed.copied = [one for one in self._copied if (one.source, one.target) in ways]
        self._copied = [one for one in self._copied if (one.source, one.target) not in ways]
        return completed

    def close(self) -> None:
        """End this rank's copies."""
        self.own.close()

    def _note(
        self, done: Iterable[Move], failed: Iterable[Move], lost: Iterable[Move], to: Completed
    ) -> None:
        for move in failed:
            self._open[move].is_failed = True
        for move in lost:
            self._open[move].is_lost = True
        for move in (*done, *failed, *lost):
            one = self._open[move]
            one.left -= 1
            if not one.left:
                del self._open[move], self._moves[one.number]
                (to.lost if one.is_lost else to.failed if one.is_failed else to.done).append(move)


class RanksDisk:
    """The disks of all ranks as one. Implements `Disk`. `own` is rank 0's disk."""

    def __init__(self, own: Disk, others: OtherRanks, erase: Callable[[Plan], None]) -> None:
        """Join the disks of all ranks. `erase` carries out plans on all ranks."""
        self._own = own
        self._others = others
        self._erase = erase
        self._reports: dict[int, DiskReport] = {}
        self._unlisted: tuple[int, ...] = ()  # slots whose records are kept but not in the tree
        self._told = 0

    @property
    def generation(self) -> int:
        """The sum of the generations of all ranks' disks (`Disk.generation`)."""
        self._take()
        return self._own.generation + sum(one.generation for one in self._reports.values())

    @property
    def state(self) -> DiskState:
        """The worst state of all ranks' disks."""
        self._take()
        states = (self._own.state, *(one.state for one in self._reports.values()))
        return max(states, key=_STATES.index)

    @property
    def encrypts(self) -> bool:
        """True if records are encrypted by owner. All ranks have the same setting."""
        return self._own.encrypts

    @property
    def stats(self) -> DiskProcessStats:
        """The counters of rank 0's disk.

        The owners being forgotten are those that some rank has not forgotten yet.
        """
        self._take()
        stats = self._own.stats
        forgetting = max((one.forgetting for one in self._reports.values()), default=0)
        return replace(stats, forgetting=max(stats.forgetting, forgetting))

    def scan(self) -> Iterator[tuple[int, BlockRecord]]:
        """List the slots that have the same record on all ranks, with the record.

        Other records are erased, because they are not in the tree. There is an exception: if a
        rank's disk has neither records nor flushes, it may be new, and the rank's old disk may be
        attached again. The other ranks then keep their records until they are overwritten or
        `erase_unlisted` is called. Raises RankGone.
        """
        self._others.tell(ScanDisk())
        own = list(self._own.scan())
        theirs = [self._scanned(place) for place in range(len(self._others))]
        slots = [{slot for slot, _ in own}, *(set(one) for one in theirs)]
        left = set[int]().union(*slots)
        for slot, record in own:
            digest = digest_of(record)
            if all(one.get(slot) == digest for one in theirs):
                left.discard(slot)
                yield slot, record
        self._leave(left, slots)

    def _leave(self, left: set[int], slots: Sequence[set[int]]) -> None:
        """Erase or keep the records in the slots `left`, which not all ranks have.

        `slots` has the slots with records for each rank.
        """
        if not left:
            return
        new = self._new(slots)
        if new:
            self._unlisted = tuple(sorted(left))
            text = "%d blocks on disk are kept and not used, as the disk of %s is new"
            _log.warning(text, len(left), " and ".join(f"rank {rank}" for rank in new))
            return
        self._erase(Plan(erase=tuple(sorted(left))))
        held = ", ".join(f"rank {rank} has {len(left & one)}" for rank, one in enumerate(slots))
        _log.warning(
            "%d blocks on disk are erased, as not all ranks have them: %s", len(left), held
        )

    def _new(self, slots: Sequence[set[int]]) -> list[int]:
        empty = [rank for rank, held in enumerate(slots) if not held]
        if not empty:
            return []
        flushes = self._flushes()
        return [rank for rank in empty if not flushes[rank]]

    def erase_unlisted(self) -> None:
        """Erase on all ranks the records that `scan` did not list. Raises RankGone."""
        if self._unlisted:
            self._erase(Plan(erase=self._unlisted))
            self._unlisted = ()

    def forget_owner(self, owner: str) -> None:
        """Make an owner's records unreadable on all ranks. Raises RankGone."""
        self._others.tell(ForgetOwner(owner))
        self._told += 1
        self._own.forget_owner(owner)

    def is_forgetting(self, owner: str) -> bool:
        """Return whether any rank may still have readable records of the forgotten owner.

        The reports of other ranks do not name owners. An owner counts as forgotten on a rank when
        the rank has forgotten all owners that it was ordered to forget.
        """
        self._take()
        if self._own.is_forgetting(owner):
            return True
        if self._told and len(self._reports) < len(self._others):
            return True
        return any(one.forgetting or one.told < self._told for one in self._reports.values())

    def note_flushes(self, flushes: Sequence[str]) -> None:
        """Record flushes as done on all ranks. Raises RankGone."""
        for start in range(0, len(flushes), MOST_FLUSHES):
            self._others.tell(NoteFlushes(tuple(flushes[start : start + MOST_FLUSHES])))
        self._own.note_flushes(flushes)

    def done_flushes(self) -> Sequence[str]:
        """List the flushes that are done on all ranks. Raises RankGone."""
        own, *theirs = self._flushes()
        return [one for one in own if all(one in others for others in theirs)]

    def _scanned(self, place: int) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        is_last = False
        while not is_last:
            part = self._others.wait_for(Scanned, place, SCAN_PATIENCE_S)
            starts = range(0, len(part.digests), DIGEST_BYTES)
            digests = (part.digests[start : start + DIGEST_BYTES] for start in starts)
            found |= zip(part.slots, digests, strict=True)
            is_last = part.is_last
        return found

    def _flushes(self) -> list[dict[str, None]]:
        self._others.tell(ListFlushes())
        own = dict.fromkeys(self._own.done_flushes())
        return [own, *(self._flushes_of(place) for place in range(len(self._others)))]

    def _flushes_of(self, place: int) -> dict[str, None]:
        found: dict[str, None] = {}
        is_last = False
        while not is_last:
            part = self._others.wait_for(FlushesDone, place, SCAN_PATIENCE_S)
            found |= dict.fromkeys(part.flushes)
            is_last = part.is_last
        return found

    def _take(self) -> None:
        for place, report in self._others.take(DiskReport):
            self._reports[place] = report


def ranks_tiers(own: LowerTiers, others: OtherRanks, runner: Runner) -> LowerTiers:
    """Join the tiers of all ranks. `own` are rank 0's tiers. Sizes are equal on all ranks.

    `runner` is the runner of all ranks.
    """
    assert isinstance(runner, RanksRunner), "one rank has tiers of its own"
    mover, disk = RanksMover(own.mover, others, runner.catch_up), None
    if own.disk is not None and own.tiers.disk_blocks:
        disk = RanksDisk(own.disk, others, mover.start)
    return replace(own, mover=mover, disk=disk)


def digest_of(record: BlockRecord) -> bytes:
    """Return 16 bytes that identify a record, for comparison."""
    content = msgspec.msgpack.encode(replace(record, hits=0))
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()
