"""Copies around a step: reports to the cache, timing, and a lost disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import pytest

from engine.copies import TierCopies
from engine.tier_interfaces import NoTiers
from prefix_cache.cache import PrefixCache
from prefix_cache.leases.load_or_recompute import LoadOrRecompute
from prefix_cache.planned_moves import PlannedMoves
from prefix_cache.restart import Restart
from storage.disk.stats import DiskProcessStats, DiskState
from storage.move import BlockRecord, Completed, Copied, Move, Plan, Tier
from tests.doubles.constant_rate import NOTHING_MEASURED

UP = (Tier.HOST, Tier.DEVICE)
DOWN = (Tier.DEVICE, Tier.HOST)


def moves(source: Tier, target: Tier, count: int, first: int = 0) -> tuple[Move, ...]:
    return tuple(Move(source, n, target, n) for n in range(first, first + count))


class TellingRestart(Restart):
    """A restart that records the blocks found on disk."""

    def __init__(self) -> None:
        self.found: list[tuple[int, BlockRecord]] = []

    def restore(self, found: Iterable[tuple[int, BlockRecord]], *, now: float) -> int:
        self.found = list(found)
        return len(self.found)


class TellingMoves(PlannedMoves):
    """Moves with prepared plans, which record the completed moves."""

    def __init__(self) -> None:
        self.plans: deque[Plan] = deque()
        self.told: list[tuple[tuple[Move, ...], ...]] = []
        self.released: list[tuple[Move, ...]] = []
        self.forgotten = 0

    def take_plan(self) -> Plan:
        return self.plans.popleft() if self.plans else Plan(())

    def complete(
        self, done: Iterable[Move] = (), failed: Iterable[Move] = (), lost: Iterable[Move] = ()
    ) -> None:
        self.told.append((tuple(done), tuple(failed), tuple(lost)))

    def release_early(self, moves: Sequence[Move]) -> None:
        self.released += [tuple(moves)] if moves else []

    def forget_disk(self) -> int:
        self.forgotten += 1
        return 0


class TellingCache(PrefixCache):
    """A cache whose `moves` and `restart` record what is reported to them."""

    def __init__(self) -> None:
        super().__init__(num_blocks=1, block_size=1)
        self.moves = self.told_moves = TellingMoves()
        self.restart = self.told_restart = TellingRestart()


class ScriptedMover:
    """A mover that ends the moves that a test chooses."""

    def __init__(self) -> None:
        self.pending = 0
        self.started: list[Plan] = []
        self.ends: deque[Completed] = deque()
        self.polls = 0

    def start(self, plan: Plan) -> None:
        self.started.append(plan)
        self.pending += len(plan.moves)

    def poll(self) -> Completed:
        self.polls += 1
        ended = self.ends.popleft() if self.ends else Completed()
        self.pending -= len(ended.done) + len(ended.failed) + len(ended.lost)
        return ended

    def close(self) -> None:
        pass


class LossyDisk:
    """A disk that has only a generation and owners."""

    def __init__(self) -> None:
        self.generation = 3
        self.state = DiskState.UP
        self.stats = DiskProcessStats()
        self.gone: list[str] = []
        self.noted: list[str] = []
        self.loses_at_scan = False
        self.encrypts = False
        self.forgetting: set[str] = set()

    def is_forgetting(self, owner: str) -> bool:
        return owner in self.forgetting

    def scan(self) -> Iterable[tuple[int, BlockRecord]]:
        self.generation += self.loses_at_scan
        return [(n, BlockRecord(b"k", b"p", b"n", "owner", b"", 0)) for n in range(2)]

    def erase_unlisted(self) -> None:
        raise NotImplementedError

    def forget_owner(self, owner: str) -> None:
        self.gone.append(owner)

    def note_flushes(self, flushes: Sequence[str]) -> None:
        self.noted += flushes

    def done_flushes(self) -> Sequence[str]:
        return self.noted


class Bench:
    def __init__(self, disk: LossyDisk | None = None) -> None:
        self.cache, self.mover = TellingCache(), ScriptedMover()
        self.rates = LoadOrRecompute(NOTHING_MEASURED, block_size=1, block_bytes=1)
        self.copies = TierCopies(self.cache, self.mover, disk, self.rates)

    def start(self, now: float, *planned: Move) -> None:
        self.cache.told_moves.plans.append(Plan(planned))
        self.copies.start(now)

    def settle(self, now: float, ended: Completed) -> bool:
        self.mover.ends.append(ended)
        return self.copies.complete(now)


def test_planned_moves_and_erasures_are_begun_and_empty_plans_are_not() -> None:
    bench = Bench()
    bench.copies.start(1.0)
    assert bench.mover.started == []
    bench.start(2.0, *moves(*UP, 2))
    bench.cache.told_moves.plans.append(Plan((), {}, (7,)))  # a plan with only an erasure
    bench.copies.start(3.0)
    assert [(plan.moves, plan.erase) for plan in bench.mover.started] == [
        (moves(*UP, 2), ()),
        ((), (7,)),
    ]
    assert bench.copies.pending == 2


def test_the_cache_is_told_of_promises_and_of_the_ends_that_follow() -> None:
    bench = Bench()
    up = moves(*UP, 2)
    bench.start(1.0, *up)
    assert bench.settle(2.0, Completed(released=[*up]))
    assert (bench.cache.told_moves.released, bench.cache.told_moves.told) == ([up], [])
    assert (bench.copies.pending, bench.copies.up_from(Tier.HOST)) == (2, 2), "under way still"
    assert bench.settle(3.0, Completed(done=[*up]))
    assert (bench.cache.told_moves.released, bench.cache.told_moves.told) == ([up], [(up, (), ())])


def test_behind_a_step_the_mover_is_asked_only_while_a_promise_is_open() -> None:
    bench = Bench(LossyDisk())
    up = moves(*UP, 2)
    bench.start(1.0, *up)
    bench.copies.complete_released(1.5)
    assert bench.mover.polls == 0
    bench.settle(2.0, Completed(released=[*up]))
    bench.mover.ends.append(Completed(done=[*up]))
    bench.copies.complete_released(3.0)
    assert (bench.mover.polls, bench.cache.told_moves.told) == (2, [(up, (), ())])
    bench.copies.complete_released(4.0)
    assert bench.mover.polls == 2


@pytest.mark.parametrize("how", [0, 1, 2], ids=["done", "failed", "lost"])
def test_the_cache_is_told_of_every_end_whichever_it_is(how: int) -> None:
    bench = Bench()
    bench.start(1.0, *moves(*UP, 1))
    assert not bench.settle(2.0, Completed())
    assert bench.cache.told_moves.told == []
    done, failed, lost = (moves(*UP, 1) if how == which else () for which in range(3))
    assert bench.settle(3.0, Completed([*done], [*failed], [*lost]))
    assert bench.cache.told_moves.told == [(done, failed, lost)]


def test_blocks_on_their_way_up_are_counted_by_where_they_come_from() -> None:
    bench = Bench()
    assert bench.copies.up_from(Tier.HOST) == 0
    bench.start(1.0, *moves(*UP, 3), *moves(*DOWN, 2, first=9), *moves(Tier.DISK, Tier.DEVICE, 1))
    assert (bench.copies.up_from(Tier.HOST), bench.copies.up_from(Tier.DISK)) == (3, 1)
    bench.settle(2.0, Completed(done=list(moves(*UP, 1)), failed=list(moves(*UP, 1, first=1))))
    assert bench.copies.up_from(Tier.HOST) == 1
    way = bench.copies.ways[UP]
    assert (way.moves, way.failed) == (1, 1)


def test_untimed_copies_take_the_time_in_which_any_of_them_was_under_way() -> None:
    bench = Bench()
    bench.start(10.0, *moves(*UP, 2))
    bench.start(11.0, *moves(*UP, 1, first=2))  # the copy direction is already busy
    bench.settle(13.0, Completed(done=list(moves(*UP, 2))))
    assert bench.copies.ways[UP].seconds == 3.0
    bench.settle(14.0, Completed(done=list(moves(*UP, 1, first=2))))
    assert bench.copies.ways[UP].seconds == 4.0
    bench.start(20.0, *moves(*UP, 1))  # the copy direction was idle before
    bench.settle(20.5, Completed(done=list(moves(*UP, 1))))
    assert bench.copies.ways[UP].seconds == 4.5


def test_the_time_that_copies_report_is_used_instead_of_the_clock() -> None:
    bench = Bench()
    bench.start(10.0, *moves(*UP, 3), *moves(*DOWN, 1, first=9))
    said = [Copied(*UP, 2, 0.25), Copied(*UP, 1, 0.5), Copied(*DOWN, 1, 8.0)]
    bench.settle(99.0, Completed([*moves(*UP, 3), *moves(*DOWN, 1, first=9)], copied=said))
    assert bench.copies.ways[UP].seconds == 0.75
    assert bench.copies.ways[DOWN].seconds == 8.0


def test_only_copies_to_the_device_teach_what_loading_costs() -> None:
    bench = Bench()
    rates = bench.rates.copies
    guesses = {tier: rate.per_block for tier, rate in rates.items()}
    bench.start(10.0, *moves(*DOWN, 4))
    bench.settle(12.0, Completed(done=list(moves(*DOWN, 4))))
    assert {tier: rate.per_block for tier, rate in rates.items()} == guesses
    bench.start(20.0, *moves(*UP, 4))
    bench.settle(22.0, Completed(done=list(moves(*UP, 4))))
    assert rates[Tier.HOST].per_block == 0.5 != guesses[Tier.HOST]
    assert rates[Tier.DISK].per_block == guesses[Tier.DISK]


def test_a_load_that_failed_is_a_slow_one() -> None:
    bench = Bench()
    bench.start(20.0, *moves(*UP, 4))
    bench.settle(22.0, Completed(failed=list(moves(*UP, 4))))
    assert bench.rates.copies[Tier.HOST].per_block == 2.0


class TestDisk:
    def test_a_disk_that_lost_its_records_is_forgotten_once(self) -> None:
        disk = LossyDisk()
        bench = Bench(disk)
        bench.copies.complete(1.0)
        assert bench.cache.told_moves.forgotten == 0
        disk.generation += 1
        for now in (2.0, 3.0):  # no copies are pending
            assert not bench.copies.complete(now)
            assert bench.cache.told_moves.forgotten == 1

    def test_failed_moves_to_a_lost_disk_are_settled_after_it_is_forgotten(self) -> None:
        """Report a disk's loss to the cache before the moves that failed because of the loss."""
        disk = LossyDisk()
        bench = Bench(disk)
        bench.start(1.0, *moves(Tier.DEVICE, Tier.DISK, 1))
        disk.generation += 1
        assert bench.settle(2.0, Completed(failed=list(moves(Tier.DEVICE, Tier.DISK, 1))))
        assert (bench.cache.told_moves.forgotten, len(bench.cache.told_moves.told)) == (1, 1)

    def test_the_mover_is_polled_while_idle_only_if_there_is_a_disk(self) -> None:
        for disk, polls in ((LossyDisk(), 1), (None, 0)):
            bench = Bench(disk)
            assert not bench.copies.complete(1.0)
            assert bench.mover.polls == polls

    def test_records_on_disk_are_restored_at_the_start(self) -> None:
        bench = Bench(LossyDisk())
        assert bench.copies.restore(1.0) == 2
        assert [slot for slot, _ in bench.cache.told_restart.found] == [0, 1]
        assert bench.cache.told_moves.forgotten == 0
        assert Bench().copies.restore(1.0) == 0

    def test_a_disk_that_dies_during_the_scan_is_forgotten(self) -> None:
        disk = LossyDisk()
        bench = Bench(disk)
        disk.loses_at_scan = True
        bench.copies.restore(1.0)
        assert bench.cache.told_moves.forgotten == 1

    def test_a_flush_is_noted_there_once_no_copy_is_under_way(self) -> None:
        disk = LossyDisk()
        bench = Bench(disk)
        [down] = moves(*DOWN, 1)
        bench.start(1.0, down)
        bench.copies.flushed(["a", "b"])
        bench.start(2.0)
        assert disk.noted == [], "a copy may still bring what was flushed"
        bench.settle(3.0, Completed(done=[down]))
        bench.start(4.0)
        bench.start(5.0)
        assert disk.noted == ["a", "b"]
        Bench().copies.flushed(["a"])

    def test_owners_are_forgotten_there_too(self) -> None:
        disk = LossyDisk()
        Bench(disk).copies.forget_owner("gone")
        assert disk.gone == ["gone"]
        Bench().copies.forget_owner("gone")


def test_without_tiers_a_plan_is_an_error_and_nothing_ends() -> None:
    mover = NoTiers()
    assert (mover.pending, mover.poll()) == (0, Completed())
    with pytest.raises(ValueError, match="no tier"):
        mover.start(Plan(moves(*UP, 1)))
