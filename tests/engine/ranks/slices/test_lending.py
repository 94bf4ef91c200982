"""What rank 0 lends is read by all ranks, and gone when none reads it any more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import pytest

from engine.exchange.answering import Asked, Asker, Gone
from engine.exchange.sending import BlocksToSend
from engine.exchange.wire import Ask, Slices
from engine.ranks.messages import EndLending, Lend, LendBlocks, LendingEnded
from engine.ranks.runner import LARGE_BYTES
from engine.ranks.slices.lending import RanksAnswering, packed, unpacked
from prefix_cache.namespace import Namespace, NamespacePath
from tests.doubles.ranks.two_ranks import TwoRanks

A, B = Namespace(b"a" * 16), Namespace(b"b" * 16)
OF_A = NamespacePath.single(A)
DOORS = ("/x.1", "/x.2")
HERE: Asker = (b"other", 7)
ASK = Ask(number=7, fingerprint=bytes(32), salt=bytes(16), first=0, window=8)


@dataclass
class OwnAnswers:
    """Rank 0's own end, in place of a thread."""

    news: list[Asked | Gone] = field(default_factory=list)
    said: list[tuple[str, Asker]] = field(default_factory=list)
    slices: list[Slices] = field(default_factory=list)
    sent_blocks: int = 0

    def take(self) -> list[Asked | Gone]:
        news, self.news = self.news, []
        return news

    def found(
        self, asker: Asker, blocks: int, first_reads: dict[str, int], slices: Slices | None = None
    ) -> None:
        assert slices is not None
        self.slices.append(slices)
        self.said.append(("found", asker))

    def send(self, asker: Asker, blocks: BlocksToSend) -> None:
        self.sent_blocks += len(blocks)
        self.said.append(("send", asker))

    def end(self, asker: Asker, why: str, *, is_all: bool) -> None:
        self.said.append(("end", asker))


@dataclass
class Rig:
    ranks: TwoRanks
    own: OwnAnswers = field(default_factory=OwnAnswers)
    caught_up: int = 0

    def __post_init__(self) -> None:
        self.all = RanksAnswering(self.own, self.ranks.others, DOORS, 300, self.catch_up)

    def catch_up(self) -> None:
        self.caught_up += 1

    def ask(self) -> Asker:
        self.own.news.append(Asked(HERE, ASK))
        [asked] = self.all.take()
        assert isinstance(asked, Asked)
        return asked.asker

    @property
    def ticket(self) -> bytes:
        return self.own.slices[-1].ticket


@pytest.fixture
def rig() -> Iterator[Rig]:
    with closing(TwoRanks()) as ranks:
        yield Rig(ranks)


def blocks(first: int, end: int, path: NamespacePath = OF_A) -> BlocksToSend:
    count = end - first
    slots = np.arange(40 + first, 40 + end, dtype="<i4").tobytes()
    return BlocksToSend(first, path, b"k" * 16 * count, b"t" * 64 * count, slots)


def test_blocks_are_packed_and_unpacked_with_their_namespaces() -> None:
    lent = blocks(3, 7, NamespacePath(((0, B), (5, A))))
    assert packed(b"t", lent).spans == ((0, B), (5, A))
    assert unpacked(packed(b"t", lent)) == lent


def test_all_ranks_send_what_was_found_and_it_is_gone_when_none_reads_it(rig: Rig) -> None:
    asker = rig.ask()
    rig.all.found(asker, 2, {})
    rig.all.send(asker, blocks(0, 2))
    rig.all.end(asker, "", is_all=True)
    ticket = rig.ticket
    assert rig.own.slices[-1] == Slices(ticket, DOORS)
    lend, lent, end = rig.ranks.told()
    assert (lend, end) == (Lend(ticket), EndLending(ticket, "", True))
    assert isinstance(lent, LendBlocks)
    assert unpacked(lent) == blocks(0, 2)
    assert rig.own.said == [("found", HERE), ("send", HERE), ("end", HERE)]
    assert rig.all.sent_bytes == 2 * 300
    rig.own.news.append(Gone(HERE))
    rig.ranks.report(2, LendingEnded(ticket))
    assert not rig.all.take(), "rank 1 reads it"
    rig.ranks.report(1, LendingEnded(ticket))
    assert rig.all.take() == [Gone(asker)]


def test_where_nothing_was_found_no_other_rank_hears_of_it(rig: Rig) -> None:
    asker = rig.ask()
    rig.all.end(asker, "", is_all=True)
    rig.own.news.append(Gone(HERE))
    assert rig.all.take() == [Gone(asker)]
    assert not rig.ranks.told()


def test_a_number_that_is_used_again_is_another_asker(rig: Rig) -> None:
    """While other ranks still read for the first one: neither ends with the other."""
    first = rig.ask()
    rig.all.found(first, 1, {})
    ticket = rig.ticket
    rig.own.news += [Gone(HERE), Asked(HERE, ASK)]
    [again] = rig.all.take()
    assert isinstance(again, Asked)
    assert again.asker != first
    rig.own.said.clear()
    rig.all.send(first, blocks(0, 1))
    assert not rig.own.said, "it reads nothing on this rank any more"
    rig.all.found(again.asker, 1, {})
    assert rig.ticket != ticket
    for rank in (1, 2):
        rig.ranks.report(rank, LendingEnded(ticket))
    assert rig.all.take() == [Gone(first)]


def test_before_much_is_told_nothing_is_put_off(rig: Rig) -> None:
    """Another rank may wait in a step for this one, and read nothing meanwhile."""
    asker = rig.ask()
    rig.all.found(asker, 1, {})
    rig.all.send(asker, blocks(0, 1))
    assert rig.caught_up == 0
    rig.all.send(asker, blocks(1, 2 + LARGE_BYTES // 80))
    assert rig.caught_up == 1


def test_who_has_left_before_anybody_looked_is_told_nothing(rig: Rig) -> None:
    rig.own.news += [Asked(HERE, ASK), Gone(HERE)]
    asked, gone = rig.all.take()
    assert isinstance(asked, Asked)
    assert gone == Gone(asked.asker)
    rig.all.end(asked.asker, "it serves another model", is_all=False)
    assert not rig.own.said
    rig.all.end(rig.ask(), "it serves another model", is_all=False)
    assert rig.own.said == [("end", HERE)], "the control"
