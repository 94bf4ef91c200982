"""A rank's slices of blocks that rank 0 lends: who asks with the ticket is sent them.

    rank 0    Lend | LendBlocks ... | EndLending       through the ring
    asker     an ask that names the ticket             at this rank's address

Either may come first. A lending that nobody asks for, and an ask that nobody has told of, end after
a while.

On a GPU a step may still run here that is over on rank 0: of a prompt's last layer nothing is
exchanged where nothing is sampled. So blocks are sent once all is over that was launched here
before they were lent. On a CPU that is so at once.

Knows: tickets. Does not know: leases, namespaces by name, or what sends (`engine.exchange`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.exchange.answering import Asked, Asker
from engine.exchange.parts import Answers
from engine.exchange.sending import BlocksToSend
from engine.exchange.wire import Ask
from engine.ranks.messages import EndLending, LendBlocks, LendingEnded, RankMessage
from engine.ranks.slices.lending import unpacked
from storage.copies import CopyEvent

OTHER_HALF_S = 5.0  # for which a lending waits for its ask, and an ask for its lending
UNKNOWN = "nothing is lent under this ticket"


@dataclass(slots=True)
class _Lent:
    """What is lent under a ticket."""

    since: float
    asker: Asker | None = None
    waiting: list[BlocksToSend] = field(default_factory=list)  # for the asker to come
    end: EndLending | None = None


@dataclass(slots=True)
class _Asked:
    """An ask of which rank 0 has not told yet."""

    ask: Ask
    since: float


class SliceLending:
    """What this rank sends. One owner thread."""

    def __init__(
        self,
        answering: Answers,
        mark: Callable[[], CopyEvent],
        fingerprint: bytes,
        report: Callable[[RankMessage], None],
    ) -> None:
        """`mark`: as `OpenExchange.mark`; `fingerprint` is that of this rank's slices."""
        self._answering = answering
        self._mark = mark
        self._fingerprint = fingerprint
        self._report = report
        self._lent: dict[bytes, _Lent] = {}  # by ticket
        self._asked: dict[Asker, _Asked] = {}
        self._tickets: dict[Asker, bytes] = {}  # of those that are lent to
        # What rank 0 has said, in its order, and what was launched before.
        self._told: deque[tuple[CopyEvent, LendBlocks | EndLending]] = deque()

    @property
    def is_busy(self) -> bool:
        """Whether one half waits for the other."""
        return bool(self._asked) or any(one.asker is None for one in self._lent.values())

    @property
    def awaits_steps(self) -> bool:
        """Whether blocks are to be sent as soon as steps are over that were launched."""
        return bool(self._told)

    def lend(self, ticket: bytes) -> None:
        """An engine may ask under this ticket."""
        self._lent[ticket] = _Lent(time.monotonic())

    def tell(self, message: LendBlocks | EndLending) -> None:
        """More of what is lent, or its end; after what was launched so far."""
        self._told.append((self._mark(), message))

    def _send(self, message: LendBlocks) -> None:
        lent = self._lent.get(message.ticket)
        if lent is None:
            return  # it is gone
        blocks = unpacked(message)
        if lent.asker is None:
            lent.waiting.append(blocks)
        else:
            self._answering.send(lent.asker, blocks)

    def _end(self, message: EndLending) -> None:
        lent = self._lent.get(message.ticket)
        if lent is None:
            return
        lent.end = message
        if lent.asker is not None:
            self._answering.end(lent.asker, message.why, is_all=message.is_all)
        elif not message.is_all:
            self._over(message.ticket)

    def turn(self, now: float) -> None:
        """Bring both halves together, and report what is over. `now`: seconds, monotonic."""
        while self._told and self._told[0][0].query():
            self._take(self._told.popleft()[1])
        for news in self._answering.take():
            if isinstance(news, Asked):
                self._asked[news.asker] = _Asked(news.ask, now)
            else:
                self._gone(news.asker)
        for asker, asked in list(self._asked.items()):
            self._join(asker, asked, now)
        for ticket, lent in list(self._lent.items()):
            if lent.asker is None and now - lent.since > OTHER_HALF_S:
                self._over(ticket)

    def _take(self, message: LendBlocks | EndLending) -> None:
        match message:
            case LendBlocks():
                self._send(message)
            case EndLending():
                self._end(message)

    def _join(self, asker: Asker, asked: _Asked, now: float) -> None:
        ticket = asked.ask.ticket
        lent = None if ticket is None else self._lent.get(ticket)
        is_its_own = asked.ask.fingerprint == self._fingerprint
        if ticket is not None and is_its_own and lent is not None and lent.asker is None:
            del self._asked[asker]
            lent.asker, self._tickets[asker] = asker, ticket
            self._answering.found(asker, sum(map(len, lent.waiting)), {})
            for blocks in lent.waiting:
                self._answering.send(asker, blocks)
            lent.waiting = []
            if lent.end is not None:
                self._answering.end(asker, lent.end.why, is_all=lent.end.is_all)
        elif ticket is None or not is_its_own or now - asked.since > OTHER_HALF_S:
            del self._asked[asker]
            self._answering.end(asker, UNKNOWN, is_all=False)

    def _gone(self, asker: Asker) -> None:
        self._asked.pop(asker, None)
        ticket = self._tickets.pop(asker, None)
        if ticket is not None:
            self._over(ticket)

    def _over(self, ticket: bytes) -> None:
        del self._lent[ticket]
        self._report(LendingEnded(ticket))
