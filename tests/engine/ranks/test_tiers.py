"""A move ends once it has ended on every rank; a disk record counts only if all ranks have it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import pytest

from engine.ranks.leader import RankGone
from engine.ranks.messages import (
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
from engine.ranks.tiers import RanksDisk, RanksMover, digest_of
from storage.disk.stats import DiskProcessStats, DiskState
from storage.move import BlockRecord, Completed, Copied, Move, Plan, Tier
from tests.doubles.ranks.two_ranks import TwoRanks

UP = tuple(Move(Tier.HOST, slot, Tier.DEVICE, slot + 10) for slot in range(3))
DOWN = tuple(Move(Tier.HOST, slot + 5, Tier.DISK, slot) for slot in range(2))
RECORD = BlockRecord(b"k" * 16, b"p" * 16, b"n" * 16, "flow", b"t" * 64)


@pytest.fixture
def ranks() -> Iterator[TwoRanks]:
    with closing(TwoRanks()) as made:
        yield made


@dataclass
class OwnMover:
    """A rank's own mover, which ends the moves that a test chooses."""

    ended: Completed = field(default_factory=Completed)
    plans: list[Plan] = field(default_factory=list)
    pending: int = 0
    is_closed: bool = False
    # number of plans begun before each launch
    launched_with: list[int] = field(default_factory=list)

    def catch_up(self) -> None:
        self.launched_with.append(len(self.plans))

    def start(self, plan: Plan) -> None:
        self.plans.append(plan)

    def poll(self) -> Completed:
        ended, self.ended = self.ended, Completed()
        return ended

    def close(self) -> None:
        self.is_closed = True


class TestMover:
    def test_tells_all_ranks_the_plan_and_carries_it_out(self, ranks: TwoRanks) -> None:
        own = OwnMover()
        plan = Plan(DOWN, dict.fromkeys(DOWN, RECORD), erase=(7,))
        RanksMover(own, ranks.others, own.catch_up).start(plan)
        [told] = ranks.told()
        assert isinstance(told, CopyBlocks)
        assert told.plan() == plan
        assert own.plans == [plan]
        assert own.launched_with == [0], "steps that the others have launched come before"

    def test_a_move_is_done_when_all_ranks_have_done_it(self, ranks: TwoRanks) -> None:
        own, copied = OwnMover(), Copied(Tier.HOST, Tier.DEVICE, 3, 0.5)
        mover = RanksMover(own, ranks.others, own.catch_up)
        mover.start(Plan(UP))
        own.ended = Completed(done=list(UP), copied=[copied])
        ranks.report(1, MovesEnded([2, 0, 1], [], []))
        assert mover.poll() == Completed(), "one rank is not ready"
        assert mover.pending == 3
        ranks.report(2, MovesEnded([1], [], []))
        assert mover.poll() == Completed(done=[UP[1]], copied=[copied])
        ranks.report(2, MovesEnded([0, 2], [], []))
        assert mover.poll() == Completed(done=[UP[0], UP[2]])
        assert mover.pending == 0

    def test_it_ends_as_on_the_rank_where_it_ends_worst(self, ranks: TwoRanks) -> None:
        own = OwnMover()
        mover = RanksMover(own, ranks.others, own.catch_up)
        mover.start(Plan(UP))
        mover.start(Plan(DOWN, dict.fromkeys(DOWN, RECORD)))  # numbering continues with 3 and 4
        ranks.report(1, MovesEnded([0, 4], [1, 3], [2]))
        ranks.report(2, MovesEnded([0, 1, 2, 3, 4], [], []))
        own.ended = Completed(done=[UP[0], UP[1], *DOWN], failed=[UP[2]])
        ended = mover.poll()
        assert ended.done == [UP[0], DOWN[1]]
        assert ended.failed == [UP[1], DOWN[0]]
        assert ended.lost == [UP[2]]

    def test_the_same_move_may_be_made_again(self, ranks: TwoRanks) -> None:
        own = OwnMover()
        mover = RanksMover(own, ranks.others, own.catch_up)
        for number in range(2):
            mover.start(Plan(UP[:1]))
            for rank in (1, 2):
                ranks.report(rank, MovesEnded([number], [], []))
            own.ended = Completed(done=[UP[0]])
            assert mover.poll() == Completed(done=[UP[0]])

    def test_with_a_rank_gone_nothing_is_started(self, ranks: TwoRanks) -> None:
        own = OwnMover()
        ranks.ends[1].close()
        with pytest.raises(RankGone, match="rank 2 is gone"):
            RanksMover(own, ranks.others, own.catch_up).start(Plan(UP))
        assert own.plans == []


@dataclass
class OwnDisk:
    """A rank's own disk with some records."""

    records: dict[int, BlockRecord] = field(default_factory=dict)
    generation: int = 0
    state: DiskState = DiskState.UP
    stats: DiskProcessStats = field(default_factory=DiskProcessStats)
    forgotten: list[str] = field(default_factory=list)
    noted: list[str] = field(default_factory=list)
    encrypts: bool = True
    forgetting: set[str] = field(default_factory=set)

    def is_forgetting(self, owner: str) -> bool:
        return owner in self.forgetting

    def scan(self) -> Iterable[tuple[int, BlockRecord]]:
        return self.records.items()

    def erase_unlisted(self) -> None:
        raise AssertionError("one rank lists all")

    def forget_owner(self, owner: str) -> None:
        self.forgotten.append(owner)

    def note_flushes(self, flushes: Sequence[str]) -> None:
        self.noted += flushes

    def done_flushes(self) -> Sequence[str]:
        return self.noted


class TestDisk:
    def test_is_as_good_as_the_worst_and_has_lost_what_any_has(self, ranks: TwoRanks) -> None:
        disk = RanksDisk(OwnDisk(generation=1), ranks.others, no_erasing)
        assert (disk.state, disk.generation) == (DiskState.UP, 1)
        ranks.report(1, DiskReport(DiskState.UP, 0, 0), DiskReport(DiskState.DOWN, 2, 0))
        ranks.report(2, DiskReport(DiskState.UP, 0, 3))
        assert (disk.state, disk.generation) == (DiskState.DOWN, 3)
        assert disk.stats.forgetting == 3
        ranks.report(1, DiskReport(DiskState.OFF, 2, 0))
        assert disk.state is DiskState.OFF

    def test_finds_what_all_ranks_have(
        self, ranks: TwoRanks, caplog: pytest.LogCaptureFixture
    ) -> None:
        other = replace(RECORD, token_ids=b"u" * 64)
        hit = replace(RECORD, hits=9)  # the numbers of hits may differ between ranks
        own, plans = OwnDisk({1: RECORD, 2: hit, 3: RECORD, 4: RECORD}), list[Plan]()
        disk = RanksDisk(own, ranks.others, plans.append)
        ranks.report(1, scanned(False, {1: RECORD, 2: RECORD}))
        ranks.report(1, scanned(True, {3: RECORD, 4: other, 5: RECORD}))
        ranks.report(2, scanned(True, {1: RECORD, 2: RECORD, 4: RECORD, 7: RECORD}))
        assert list(disk.scan()) == [(1, RECORD), (2, hit)]
        assert ranks.told() == [ScanDisk()]
        assert plans == [Plan(erase=(3, 4, 5, 7))], "what no tree knows of stays nowhere"
        assert caplog.messages == [
            "4 blocks on disk are erased, as not all ranks have them:"
            " rank 0 has 2, rank 1 has 3, rank 2 has 2"
        ]
        disk.erase_unlisted()
        assert len(plans) == 1

    def test_beside_a_new_disk_what_the_others_have_is_kept_until_all_is_flushed(
        self, ranks: TwoRanks, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Keep the other ranks' records beside a rank's new, empty disk, until everything is
        flushed.

        The missing disk may come back with the matching records.
        """
        plans = list[Plan]()
        disk = RanksDisk(OwnDisk({1: RECORD, 2: RECORD}), ranks.others, plans.append)
        ranks.report(1, scanned(True, {1: RECORD, 4: RECORD}), FlushesDone(["fl"], True))
        ranks.report(2, scanned(True, {}), FlushesDone([], True))
        assert list(disk.scan()) == []
        assert plans == []
        assert caplog.messages == [
            "3 blocks on disk are kept and not used, as the disk of rank 2 is new"
        ]
        for _ in range(2):
            disk.erase_unlisted()
        assert plans == [Plan(erase=(1, 2, 4))], "no tree knows of them, and none has to be asked"

    def test_a_disk_that_was_flushed_is_empty_and_not_new(self, ranks: TwoRanks) -> None:
        plans = list[Plan]()
        disk = RanksDisk(OwnDisk({1: RECORD}), ranks.others, plans.append)
        ranks.report(1, scanned(True, {1: RECORD}), FlushesDone([], True))
        ranks.report(2, scanned(True, {}), FlushesDone(["fl"], True))
        assert list(disk.scan()) == []
        assert plans == [Plan(erase=(1,))]

    def test_where_all_have_the_same_nothing_is_erased(self, ranks: TwoRanks) -> None:
        disk = RanksDisk(OwnDisk({1: RECORD}), ranks.others, no_erasing)
        for rank in (1, 2):
            ranks.report(rank, scanned(True, {1: RECORD}))
        assert list(disk.scan()) == [(1, RECORD)]

    def test_owners_are_forgotten_on_all(self, ranks: TwoRanks) -> None:
        own = OwnDisk()
        RanksDisk(own, ranks.others, no_erasing).forget_owner("flow")
        assert ranks.told() == [ForgetOwner("flow")]
        assert own.forgotten == ["flow"]

    def test_an_owner_is_forgotten_once_all_ranks_have_said_so(self, ranks: TwoRanks) -> None:
        own = OwnDisk()
        disk = RanksDisk(own, ranks.others, no_erasing)
        for rank in (1, 2):
            ranks.report(rank, DiskReport(DiskState.UP, 0, 0))
        assert not disk.is_forgetting("flow"), "the control"
        disk.forget_owner("flow")
        assert disk.is_forgetting("flow"), "their reports are older"
        ranks.report(1, DiskReport(DiskState.UP, 0, 1, 1), DiskReport(DiskState.UP, 0, 0, 1))
        ranks.report(2, DiskReport(DiskState.UP, 0, 1, 1))
        assert disk.is_forgetting("flow")
        ranks.report(2, DiskReport(DiskState.UP, 0, 0, 1))
        assert not disk.is_forgetting("flow")
        own.forgetting.add("flow")
        assert disk.is_forgetting("flow")

    def test_flushes_are_noted_on_all_and_done_where_they_are_on_all(self, ranks: TwoRanks) -> None:
        own = OwnDisk()
        disk = RanksDisk(own, ranks.others, no_erasing)
        flushes = [f"fl_{number}" for number in range(MOST_FLUSHES + 2)]
        disk.note_flushes(flushes)
        assert own.noted == flushes
        told = ranks.told()
        assert [one for part in told if isinstance(part, NoteFlushes) for one in part.flushes] == (
            flushes
        )
        ranks.report(1, FlushesDone(["fl_1", "fl_2"], False), FlushesDone(["fl_3"], True))
        ranks.report(2, FlushesDone(["fl_3", "fl_0", "fl_1"], True))
        assert disk.done_flushes() == ["fl_1", "fl_3"]
        assert ranks.told() == [ListFlushes()]


def no_erasing(plan: Plan) -> None:
    raise AssertionError(f"{plan} is carried out")


def scanned(is_last: bool, records: dict[int, BlockRecord]) -> Scanned:
    digests = b"".join(digest_of(record) for record in records.values())
    return Scanned(list(records), digests, is_last)
