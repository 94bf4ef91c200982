"""A fetch on all ranks: what has arrived on every one counts, and one that fails ends it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import pytest

from engine.exchange.fetch import Fetch, Wanted
from engine.exchange.wire import Slices
from engine.ranks.messages import FetchSlices, LeaveSlices, RankMessage, SlicesFetched
from engine.ranks.slices.fetching import RanksAsking
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import Namespace, NamespacePath
from storage.copies import Passed
from tests.doubles.ranks.two_ranks import TwoRanks

SIZE, FIRST, END = 4, 2, 6
PATH = NamespacePath(((0, Namespace(b"p" * 16)), (3, Namespace(b"a" * 16))))
TOKENS = np.arange(END * SIZE, dtype=np.int32)
SLICES = Slices(b"t" * 16, ("tcp://0.0.0.0:71", "tcp://0.0.0.0:72"))


@dataclass
class OwnAsks:
    """Rank 0's own end, in place of a thread: what it was given."""

    begun: list[Fetch] = field(default_factory=list)
    left: list[Fetch] = field(default_factory=list)

    def begin(self, fetch: Fetch) -> None:
        self.begun.append(fetch)

    def leave(self, fetch: Fetch) -> None:
        assert fetch.is_closed, "it may still be written"
        self.left.append(fetch)

    def turn(self) -> None: ...


class Rig:
    """One fetch that was begun."""

    def __init__(self, ranks: TwoRanks, seconds: float = 60.0) -> None:
        self.ranks, self.own = ranks, OwnAsks()
        self.caught_up = 0
        self.all = RanksAsking(self.own, ranks.others, self.catch_up)
        self.fetch = Fetch(wanted(seconds), FIRST, began=0.0, way="socket")
        self.all.begin(self.fetch)
        [self.here] = self.own.begun
        assert self.caught_up == 1, "what was launched before may use the blocks"

    def catch_up(self) -> None:
        self.caught_up += 1

    def find(self) -> list[RankMessage]:
        """The other engine has told addresses; what the other ranks are told."""
        self.here.slices = SLICES
        self.all.turn()
        return self.ranks.told()

    def report(self, rank: int, arrived: int, why: str | None = None) -> None:
        self.ranks.report(rank, SlicesFetched(1, arrived, why))

    def arrived(self) -> int:
        self.all.turn()
        return self.fetch.arrived


def wanted(seconds: float) -> Wanted:
    return Wanted(
        address="tcp://gpu1:70",
        path=PATH,
        tokens=TOKENS,
        block_keys=block_keys(PATH, TOKENS, SIZE),
        block_ids=np.arange(100, 110, dtype=np.int32),
        first=FIRST,
        end=END,
        flow="flow",
        request_id=None,
        deadline=time.monotonic() + seconds,
        mark=Passed(),
    )


@pytest.fixture
def ranks() -> Iterator[TwoRanks]:
    with closing(TwoRanks()) as made:
        yield made


def test_other_ranks_are_told_once_something_was_found(ranks: TwoRanks) -> None:
    rig = Rig(ranks)
    rig.all.turn()
    assert not ranks.told()
    [told] = rig.find()
    assert isinstance(told, FetchSlices)
    assert told.addresses == ("tcp://gpu1:71", "tcp://gpu1:72"), "as this engine reaches the other"
    assert (told.ticket, told.first, told.end) == (SLICES.ticket, FIRST, END)
    assert told.token_ids == TOKENS.tobytes()
    assert told.block_ids == np.arange(100, 100 + END, dtype="<i4").tobytes()
    assert not rig.find(), "once"


def test_as_much_has_arrived_as_on_the_rank_that_has_least(ranks: TwoRanks) -> None:
    rig = Rig(ranks)
    rig.here.arrived = 4
    assert rig.arrived() == FIRST, "no other rank has anything"
    rig.find()
    rig.report(1, 6)
    assert rig.arrived() == FIRST
    rig.report(2, 3)
    assert rig.arrived() == 3
    rig.report(2, 5)
    assert rig.arrived() == 4
    rig.here.arrived = END
    rig.here.end("")
    rig.report(1, END, "")
    assert (rig.arrived(), rig.fetch.is_over) == (5, False)
    rig.report(2, END, "")
    assert (rig.arrived(), rig.fetch.why) == (END, "")
    assert not ranks.told(), "there is nobody to be told to leave"


def test_a_slice_that_fails_ends_it_on_all_ranks(ranks: TwoRanks) -> None:
    rig = Rig(ranks)
    rig.find()
    rig.here.arrived = 5
    rig.report(1, 4)
    rig.report(2, 3, "a block is not what was asked for")
    assert rig.arrived() == 3, "what came before is sound"
    assert rig.fetch.why == "a block is not what was asked for"
    assert rig.own.left == [rig.here]
    assert ranks.told() == [LeaveSlices(1)]
    rig.report(1, 6)  # it was on its way
    assert rig.arrived() == 3


def test_what_fails_here_ends_it_too_and_is_left_once(ranks: TwoRanks) -> None:
    rig = Rig(ranks)
    rig.find()
    rig.here.end("it does not answer")
    rig.all.turn()
    assert rig.fetch.why == "it does not answer"
    assert (rig.own.left, rig.here.is_closed) == ([], True)
    assert ranks.told() == [LeaveSlices(1)]


def test_where_nothing_was_found_it_is_over_and_no_other_rank_hears_of_it(ranks: TwoRanks) -> None:
    rig = Rig(ranks)
    rig.here.end("")
    assert (rig.arrived(), rig.fetch.why) == (FIRST, "")
    assert not ranks.told()


def test_one_that_is_left_is_closed_here_before_others_are_told(ranks: TwoRanks) -> None:
    rig = Rig(ranks)
    rig.find()
    rig.fetch.close()
    rig.all.leave(rig.fetch)
    assert rig.own.left == [rig.here]
    assert ranks.told() == [LeaveSlices(1)]


def test_whatever_a_rank_does_it_ends_at_its_deadline(ranks: TwoRanks) -> None:
    rig = Rig(ranks, seconds=0.0)
    rig.all.turn()
    assert rig.fetch.why == "it takes too long"
    other = Rig(ranks)  # the control
    other.all.turn()
    assert other.fetch.why is None


def test_an_engine_with_another_number_of_ranks_is_not_asked(ranks: TwoRanks) -> None:
    rig = Rig(ranks)
    rig.here.slices = Slices(b"t" * 16, ("/x.1",))
    rig.all.turn()
    assert rig.fetch.why == "it has not as many ranks"
    assert not ranks.told()


def test_an_address_that_is_none_ends_it_and_nothing_else(ranks: TwoRanks) -> None:
    rig = Rig(ranks)
    rig.here.slices = Slices(b"t" * 16, ("tcp://gpu1:71", "tcp://none"))
    rig.all.turn()
    assert rig.fetch.why == "it tells an address that is none"
    assert not ranks.told()
    assert Rig(ranks).find(), "the control"
