"""Blocks that rank 0 lends to other engines: all ranks send their slices, as one.

    asked ->  rank 0 leases, says Lend and LendBlocks | tells the asker a ticket and addresses
              each rank sends its slices to the rank of the same number that asks under the ticket
    Gone      once nothing of it is read on any rank; then the leases are given back

What was lent and what will be written are told through one ring, in order; so no rank sends a
block that has been given to another prompt.

Knows: tickets, and which ranks still read. Does not know: leases, or how a rank sends (`lent`).
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from engine.exchange.answering import Asked, Asker, Gone
from engine.exchange.sending import BlocksToSend
from engine.exchange.wire import TICKET_BYTES, Slices
from engine.ranks.leader import OtherRanks
from engine.ranks.messages import EndLending, Lend, LendBlocks, LendingEnded
from engine.ranks.runner import LARGE_BYTES
from prefix_cache.namespace import Namespace, NamespacePath


class OwnAnswers(Protocol):
    """Rank 0's own end; as `Answering`."""

    @property
    def sent_blocks(self) -> int:
        """As `Answers.sent_blocks`."""
        ...

    def take(self) -> list[Asked | Gone]:
        """As `Answers.take`."""
        ...

    def found(
        self, asker: Asker, blocks: int, first_reads: dict[str, int], slices: Slices | None = None
    ) -> None:
        """As `Answering.found`."""
        ...

    def send(self, asker: Asker, blocks: BlocksToSend) -> None:
        """As `Answers.send`."""
        ...

    def end(self, asker: Asker, why: str, *, is_all: bool) -> None:
        """As `Answers.end`."""
        ...


@dataclass(slots=True)
class _Lent:
    """What is lent to one asker; the other ranks hear of it when something was found."""

    here: Asker | None  # what this rank's end calls it; None: it reads nothing here any more
    ticket: bytes | None = None  # None: the others have not heard
    readers: set[int] = field(default_factory=set)  # places of other ranks

    @property
    def is_over(self) -> bool:
        return not self.readers and self.here is None


class RanksAnswering:
    """Implements `Answers` for all ranks; `own` is this rank's. One owner thread."""

    def __init__(
        self,
        own: OwnAnswers,
        others: OtherRanks,
        addresses: Sequence[str],
        block_bytes: int,
        catch_up: Callable[[], None],
    ) -> None:
        """`addresses` of the others, in order; `block_bytes` on all ranks.

        `catch_up` launches here the steps that the others were told before.
        """
        self._own = own
        self._others = others
        self._addresses = tuple(addresses)
        self._block_bytes = block_bytes
        self._catch_up = catch_up
        self._lent: dict[Asker, _Lent] = {}
        self._askers: dict[Asker, Asker] = {}  # by what this rank's end calls them
        self._by_ticket: dict[bytes, Asker] = {}
        self._numbers = itertools.count(1)

    @property
    def sent_blocks(self) -> int:
        """As `Answers.sent_blocks`."""
        return self._own.sent_blocks

    @property
    def sent_bytes(self) -> int:
        """As `Answers.sent_bytes`: each rank sends its slices of as many blocks."""
        return self._own.sent_blocks * self._block_bytes

    def take(self) -> list[Asked | Gone]:
        """As `Answers.take`. One is gone when it is on all ranks."""
        news: list[Asked | Gone] = []
        for one in self._own.take():
            if isinstance(one, Asked):
                news.append(Asked(self._asker(one.asker), one.ask))
            else:
                asker = self._askers.pop(one.asker)
                self._lent[asker].here = None
                news += self._gone(asker)
        if self._by_ticket:
            for place, report in self._others.take(LendingEnded):
                asker = self._by_ticket[report.ticket]
                self._lent[asker].readers.discard(place)
                news += self._gone(asker)
        return news

    def found(self, asker: Asker, blocks: int, first_reads: dict[str, int]) -> None:
        """As `Answers.found`. Raises RankGone."""
        lent = self._lent[asker]
        if lent.ticket is None:
            lent.ticket = secrets.token_bytes(TICKET_BYTES)
            lent.readers = set(range(len(self._others)))
            self._by_ticket[lent.ticket] = asker
            self._others.tell(Lend(lent.ticket))
        if lent.here is not None:
            self._own.found(lent.here, blocks, first_reads, Slices(lent.ticket, self._addresses))

    def send(self, asker: Asker, blocks: BlocksToSend) -> None:
        """As `Answers.send`, after `found`. Raises RankGone."""
        lent = self._lent[asker]
        if blocks and lent.ticket is not None and lent.readers:
            message = packed(lent.ticket, blocks)
            if len(message.token_ids) + len(message.block_keys) > LARGE_BYTES:
                self._catch_up()
            self._others.tell(message)
        if lent.here is not None:
            self._own.send(lent.here, blocks)

    def end(self, asker: Asker, why: str, *, is_all: bool) -> None:
        """As `Answers.end`. Raises RankGone."""
        lent = self._lent.get(asker)
        if lent is None:
            return  # it has asked and left before anybody looked
        if lent.ticket is not None and lent.readers:
            self._others.tell(EndLending(lent.ticket, why, is_all))
        if lent.here is not None:
            self._own.end(lent.here, why, is_all=is_all)

    def _asker(self, here: Asker) -> Asker:
        """A name of its own: the other end may use its number again while some rank is read."""
        asker = here[0], next(self._numbers)
        self._askers[here], self._lent[asker] = asker, _Lent(here)
        return asker

    def _gone(self, asker: Asker) -> list[Gone]:
        lent = self._lent[asker]
        if not lent.is_over:
            return []
        del self._lent[asker]
        if lent.ticket is not None:
            del self._by_ticket[lent.ticket]
        return [Gone(asker)]


def packed(ticket: bytes, blocks: BlocksToSend) -> LendBlocks:
    """Blocks as a message; `unpacked` is the way back."""
    return LendBlocks(
        ticket=ticket,
        first=blocks.first,
        spans=blocks.path.spans,
        block_keys=blocks.keys,
        token_ids=blocks.token_ids,
        slots=blocks.slots,
    )


def unpacked(message: LendBlocks) -> BlocksToSend:
    """The blocks of a message; `packed` makes it."""
    return BlocksToSend(
        first=message.first,
        path=NamespacePath(tuple((start, Namespace(one)) for start, one in message.spans)),
        keys=message.block_keys,
        token_ids=message.token_ids,
        slots=message.slots,
    )
