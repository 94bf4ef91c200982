"""A rank's own slices: who asks with a ticket is sent them, and what is wanted is reported."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import pytest

from engine.exchange.answering import Asked, Asker, Gone
from engine.exchange.fetch import Fetch, Patience, Way
from engine.exchange.parts import Answers
from engine.exchange.sending import BlocksToSend
from engine.exchange.wire import Ask
from engine.ranks.messages import (
    EndLending,
    FetchSlices,
    LeaveSlices,
    Lend,
    LendingEnded,
    RankMessage,
    SlicesFetched,
)
from engine.ranks.slices.lending import packed
from engine.ranks.slices.lent import OTHER_HALF_S, SliceLending
from engine.ranks.slices.rank_exchange import SliceExchange, address_of
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import Namespace, NamespacePath
from storage.copies import CopyEvent, Passed

A = Namespace(b"a" * 16)
TICKET, OWN, OTHERS = b"t" * 16, b"f" * 32, b"g" * 32
ASKER: Asker = (b"other", 3)


def lent(first: int, end: int) -> BlocksToSend:
    slots = np.arange(9 + first, 9 + end, dtype="<i4").tobytes()
    count, path = end - first, NamespacePath.single(A)
    return BlocksToSend(first, path, bytes(16 * count), bytes(64 * count), slots)


@dataclass
class Threads:
    """In place of both threads, and of what opens them. An `OpenExchange`."""

    news: list[Asked | Gone] = field(default_factory=list)
    said: list[object] = field(default_factory=list)
    begun: list[Fetch] = field(default_factory=list)
    left: list[Fetch] = field(default_factory=list)
    sent_blocks = sent_bytes = block_bytes = 0
    address: str | None = None
    patience: Patience | None = None
    launched: CopyEvent = field(default_factory=Passed)

    @property
    def answering(self) -> Answers:
        return self

    def take(self) -> list[Asked | Gone]:
        news, self.news = self.news, []
        return news

    def found(self, asker: Asker, blocks: int, first_reads: dict[str, int]) -> None:
        self.said.append("found")

    def send(self, asker: Asker, blocks: BlocksToSend) -> None:
        self.said.append(blocks)

    def end(self, asker: Asker, why: str, *, is_all: bool) -> None:
        self.said.append(("end", is_all))

    def mark(self) -> CopyEvent:
        return self.launched

    def asking(self, fingerprint: bytes) -> Threads:
        assert fingerprint == OWN
        return self

    def way_of(self, where: str) -> Way:
        return "socket"

    def begin(self, fetch: Fetch) -> None:
        self.begun.append(fetch)

    def leave(self, fetch: Fetch) -> None:
        self.left.append(fetch)

    def turn(self) -> None: ...


@dataclass
class Rig:
    threads: Threads = field(default_factory=Threads)
    reports: list[RankMessage] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slices = SliceExchange(self.threads, 1, OWN, self.reports.append)
        self.lending = SliceLending(self.threads, Passed, OWN, self.reports.append)

    def ask(self, ticket: bytes | None = TICKET, fingerprint: bytes = OWN) -> None:
        ask = Ask(
            number=3, fingerprint=fingerprint, salt=bytes(16), first=0, window=8, ticket=ticket
        )
        self.threads.news.append(Asked(ASKER, ask))


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_either_half_of_a_lending_may_come_first(rig: Rig) -> None:
    for asks_first in (True, False):
        rig.threads.said.clear()
        if asks_first:
            rig.ask()
            rig.slices.turn()
            assert rig.slices.is_busy
        rig.slices.do(Lend(TICKET))
        rig.slices.do(packed(TICKET, lent(0, 2)))
        if not asks_first:
            rig.ask()
        rig.slices.turn()
        rig.slices.do(packed(TICKET, lent(2, 3)))
        rig.slices.do(EndLending(TICKET, "", True))
        rig.slices.turn()
        assert rig.threads.said == ["found", lent(0, 2), lent(2, 3), ("end", True)]
        assert not rig.slices.is_busy
        assert not rig.reports
        rig.threads.news.append(Gone(ASKER))
        rig.slices.turn()
        assert rig.reports == [LendingEnded(TICKET)]
        rig.reports.clear()


def test_all_of_a_lending_may_be_told_before_it_is_asked_for(rig: Rig) -> None:
    for message in (Lend(TICKET), packed(TICKET, lent(0, 3)), EndLending(TICKET, "", True)):
        rig.slices.do(message)
    rig.ask()
    rig.slices.turn()
    assert rig.threads.said == ["found", lent(0, 3), ("end", True)]


def test_a_lending_that_ends_early_is_over_at_once_where_nobody_has_asked(rig: Rig) -> None:
    rig.slices.do(Lend(TICKET))
    rig.slices.do(EndLending(TICKET, "it takes too long", False))
    rig.slices.turn()
    assert rig.reports == [LendingEnded(TICKET)]
    for message in (packed(TICKET, lent(0, 3)), EndLending(TICKET, "", True)):
        rig.slices.do(message)  # on their way
    rig.slices.turn()
    assert not rig.threads.said


@dataclass
class Step:
    """One that was launched."""

    is_over: bool = False

    def query(self) -> bool:
        return self.is_over

    def synchronize(self) -> None:
        raise AssertionError("the loop waits for no step")


def test_what_a_step_may_still_write_is_not_sent(rig: Rig) -> None:
    rig.slices.do(Lend(TICKET))
    rig.ask()
    rig.threads.launched = step = Step()
    rig.slices.do(packed(TICKET, lent(0, 3)))
    rig.threads.launched = Passed()
    rig.slices.do(EndLending(TICKET, "", True))
    rig.slices.turn()
    assert rig.threads.said == ["found"]
    assert rig.slices.awaits_steps
    step.is_over = True
    rig.slices.turn()
    assert rig.threads.said == ["found", lent(0, 3), ("end", True)]
    assert not rig.slices.awaits_steps


def test_neither_half_waits_for_ever(rig: Rig) -> None:
    lending = rig.lending
    lending.lend(TICKET)
    rig.ask(b"u" * 16)
    begin = time.monotonic()
    lending.turn(begin)
    assert (rig.reports, rig.threads.said) == ([], [])
    lending.turn(begin + OTHER_HALF_S + 1)
    assert rig.reports == [LendingEnded(TICKET)]
    assert rig.threads.said == [("end", False)]
    assert not lending.is_busy


@pytest.mark.parametrize(("ticket", "fingerprint"), [(None, OWN), (TICKET, OTHERS)])
def test_who_has_no_ticket_or_is_another_rank_is_refused(
    rig: Rig, ticket: bytes | None, fingerprint: bytes
) -> None:
    rig.slices.do(Lend(TICKET))
    rig.ask(ticket, fingerprint)
    rig.slices.turn()
    assert rig.threads.said == [("end", False)]


def test_a_ticket_is_good_for_one(rig: Rig) -> None:
    rig.slices.do(Lend(TICKET))
    rig.ask()
    rig.slices.turn()
    rig.threads.said.clear()
    rig.threads.news.append(Asked((b"another", 1), _ask_again()))
    rig.slices.turn()
    rig.slices.do(packed(TICKET, lent(0, 3)))
    rig.slices.turn()
    assert rig.threads.said == [lent(0, 3)], "to the first"


def _ask_again() -> Ask:
    return Ask(number=1, fingerprint=OWN, salt=bytes(16), first=0, window=8, ticket=TICKET)


def wanted() -> FetchSlices:
    tokens, path = np.arange(24, dtype=np.int32), NamespacePath.single(A)
    return FetchSlices(
        number=5,
        ticket=TICKET,
        addresses=("/x.1", "/x.2"),
        spans=path.spans,
        token_ids=tokens.tobytes(),
        block_keys=block_keys(path, tokens, 4),
        block_ids=np.arange(50, 56, dtype="<i4").tobytes(),
        first=2,
        end=6,
        within_s=9.0,
    )


def test_what_is_wanted_is_asked_at_the_address_of_this_rank_and_reported(rig: Rig) -> None:
    began = time.monotonic()
    rig.slices.do(wanted())
    [fetch] = rig.threads.begun
    asked = fetch.wanted
    assert (asked.address, asked.ticket) == ("/x.1", TICKET)
    assert began + 9.0 <= asked.deadline <= time.monotonic() + 9.0
    assert asked.block_ids.tolist() == [*range(50, 56)]
    place = asked.place(3, 5)
    assert place is not None
    assert place.token_ids == np.arange(12, 20, dtype="<i4").tobytes()
    rig.slices.turn()
    assert not rig.reports
    fetch.arrived = 4
    rig.slices.turn()
    rig.slices.turn()
    fetch.arrived = 6
    fetch.end("")
    rig.slices.turn()
    rig.slices.turn()
    assert rig.reports == [SlicesFetched(5, 4, None), SlicesFetched(5, 6, "")]
    rig.slices.do(LeaveSlices(5))  # on its way
    assert not rig.threads.left


def test_what_is_left_is_not_written_any_more(rig: Rig) -> None:
    rig.slices.do(wanted())
    [fetch] = rig.threads.begun
    assert not fetch.is_closed, "the control"
    rig.slices.do(LeaveSlices(5))
    assert fetch.is_closed
    assert rig.threads.left == [fetch]
    fetch.arrived = 5
    rig.slices.turn()
    assert not rig.reports


@dataclass
class Copies:
    """Copies from another GPU that are under way until somebody waits for them."""

    fetch: Fetch
    closed_first: bool | None = None  # None: nobody has waited

    def query(self) -> bool:
        return self.closed_first is not None

    def synchronize(self) -> None:
        self.closed_first = self.fetch.is_closed


def test_what_has_failed_is_reported_once_nothing_of_it_is_copied_any_more(rig: Rig) -> None:
    rig.slices.do(wanted())
    [fetch] = rig.threads.begun
    fetch.writing = copies = Copies(fetch)
    fetch.arrived = 3
    rig.slices.turn()
    assert rig.reports == [SlicesFetched(5, 3, None)]
    assert not copies.query(), "while it goes on nothing waits"
    fetch.end("a block is not what was asked for")
    rig.slices.turn()
    assert rig.reports[1:] == [SlicesFetched(5, 3, "a block is not what was asked for")]
    assert copies.closed_first, "rank 0 gives the slots to others now, and tells this rank nothing"


def test_other_ranks_are_asked_beside_rank_0() -> None:
    assert address_of(None, 1) is None
    assert address_of("/run/engine.sock.x", 2) == "/run/engine.sock.x.2"
    assert address_of("tcp://0.0.0.0:7302", 2) == "tcp://0.0.0.0:7304"
    assert address_of("tcp://[::]:*", 3) == "tcp://[::]:*"
