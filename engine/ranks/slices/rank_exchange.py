"""What a rank has to do with other engines: it sends its slices of blocks, and fetches them.

Rank 0 decides both. Each rank is asked at an address of its own, and asks the other engine's rank
of its number.

Knows: who is told what. Does not know: tickets (`lent`) or slots (`fetched`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from engine.exchange.parts import OpenExchange
from engine.link.address import is_tcp
from engine.ranks.messages import (
    EndLending,
    Exchanged,
    FetchSlices,
    LeaveSlices,
    Lend,
    LendBlocks,
    RankMessage,
)
from engine.ranks.slices.fetched import SliceFetching
from engine.ranks.slices.lent import SliceLending

ANY = "*"  # free port


def address_of(where: str | None, rank: int) -> str | None:
    """Where a rank from 1 on is asked, if its rank 0 is asked `where`: so many ports after it."""
    if where is None:
        return None
    if not is_tcp(where):
        return f"{where}.{rank}"
    host, _, port = where.rpartition(":")
    return f"{host}:{port if port == ANY else int(port) + rank}"


class SliceExchange:
    """Both, as the rank's loop sees them. One owner thread."""

    def __init__(
        self,
        opened: OpenExchange,
        rank: int,
        fingerprint: bytes,
        report: Callable[[RankMessage], None],
    ) -> None:
        """`fingerprint` is that of this rank's slices; `report` tells rank 0."""
        self._lending = None
        if opened.answering is not None:
            self._lending = SliceLending(opened.answering, opened.mark, fingerprint, report)
        self._fetching = SliceFetching(opened, rank, fingerprint, report)

    @property
    def is_busy(self) -> bool:
        """Whether something ends by itself after a while."""
        return self._lending is not None and self._lending.is_busy

    @property
    def awaits_steps(self) -> bool:
        """Whether something goes on as soon as steps are over that were launched."""
        return self._lending is not None and self._lending.awaits_steps

    def do(self, message: Exchanged) -> None:
        """What rank 0 says. Raises ThreadEnded."""
        match message:
            case FetchSlices():
                self._fetching.begin(message)
            case LeaveSlices(number):
                self._fetching.leave(number)
            case _:
                if self._lending is not None:
                    _lend(self._lending, message)

    def turn(self) -> None:
        """See to what has come from other engines. Raises ThreadEnded."""
        self._fetching.turn()
        if self._lending is not None:
            self._lending.turn(time.monotonic())


def _lend(lending: SliceLending, message: Lend | LendBlocks | EndLending) -> None:
    match message:
        case Lend(ticket):
            lending.lend(ticket)
        case LendBlocks() | EndLending():
            lending.tell(message)
