"""What rank 0 fetches from another engine: all ranks fetch their slices, as one.

    begin    this rank asks, as one alone does
    found    the other engine tells a ticket, and addresses: each rank asks at that of its number
    arrived  what is in place on all ranks, and was verified there
    over     all have all that was there; or one could not: then none goes on

A fetch that ends early is left on all ranks before its slots are given to others: the ring tells
both in this order.

Knows: which rank has how much. Does not know: sequences, or how a rank fetches (`fetched`).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.exchange.fetch import Fetch, Wanted
from engine.exchange.parts import Asks
from engine.exchange.wire import Slices
from engine.link.address import as_reached
from engine.ranks.leader import OtherRanks
from engine.ranks.messages import FetchSlices, LeaveSlices, SlicesFetched
from engine.ranks.runner import LARGE_BYTES

TOO_LONG = "it takes too long"
OTHER_RANKS = "it has not as many ranks"
NO_ADDRESS = "it tells an address that is none"


@dataclass(slots=True)
class _OnRanks:
    """One fetch on all ranks; `reports` are the others', once they have been told."""

    number: int
    own: Fetch
    reports: list[SlicesFetched] = field(default_factory=list)

    @property
    def arrived(self) -> int:
        """Blocks that are in place on all ranks."""
        if not self.reports:
            return self.own.wanted.first
        return min(self.own.arrived, *(one.arrived for one in self.reports))

    @property
    def why(self) -> str | None:
        """Why it is over, as `Fetch.why`; the first rank's that failed."""
        whys = [self.own.why, *(one.why for one in self.reports)]
        failed = next((why for why in whys if why), None)
        return failed or (None if None in whys else "")


class RanksAsking:
    """Implements `Asks` for all ranks; `own` is this rank's. One owner thread."""

    def __init__(self, own: Asks, others: OtherRanks, catch_up: Callable[[], None]) -> None:
        """`catch_up` launches here the steps that the others were told before."""
        self._own = own
        self._others = others
        self._catch_up = catch_up
        self._under_way: dict[Fetch, _OnRanks] = {}
        self._numbers = itertools.count(1)

    def begin(self, fetch: Fetch) -> None:
        """As `Asks.begin`. What was launched before may still use the blocks: that comes first."""
        self._catch_up()
        own = Fetch(fetch.wanted, fetch.arrived, fetch.began, fetch.way)
        self._under_way[fetch] = _OnRanks(next(self._numbers), own)
        self._own.begin(own)

    def leave(self, fetch: Fetch) -> None:
        """As `Asks.leave`. Raises RankGone."""
        self._leave(self._under_way.pop(fetch))

    def turn(self) -> None:
        """As `Asks.turn`. Raises RankGone."""
        by_number = {one.number: one for one in self._under_way.values()}
        for place, report in self._others.take(SlicesFetched):
            if report.number in by_number:  # else it was left meanwhile
                by_number[report.number].reports[place] = report
        for fetch, one in list(self._under_way.items()):
            self._look(fetch, one)

    def _look(self, fetch: Fetch, one: _OnRanks) -> None:
        own, why = one.own, one.why  # before `arrived`: it arrives before the end
        if own.slices is not None and not one.reports and not why:
            why = self._tell(one, own.slices)
        fetch.way, fetch.answered = own.way, own.answered
        fetch.arrived = one.arrived
        if why is None and time.monotonic() > own.wanted.deadline:
            why = TOO_LONG  # whatever a rank does
        if why is not None:
            del self._under_way[fetch]
            self._leave(one)
            fetch.first_reads = own.first_reads
            fetch.end(why)

    def _tell(self, one: _OnRanks, slices: Slices) -> str | None:
        """Have the other ranks fetch theirs; why they cannot."""
        if len(slices.addresses) != len(self._others):
            return OTHER_RANKS
        wanted = one.own.wanted
        try:
            addresses = tuple(as_reached(one, wanted.address) for one in slices.addresses)
        except ValueError:
            return NO_ADDRESS
        message = _message(one.number, wanted, Slices(slices.ticket, addresses))
        if len(message.token_ids) > LARGE_BYTES:
            self._catch_up()
        self._others.tell(message)
        one.reports = [SlicesFetched(one.number, wanted.first, None) for _ in addresses]
        return None

    def _leave(self, one: _OnRanks) -> None:
        """Nothing of it is written on this rank any more, nor on others by what they are told."""
        one.own.close()
        if not one.own.is_over:
            self._own.leave(one.own)
        if any(report.why is None for report in one.reports):
            self._others.tell(LeaveSlices(one.number))


def _message(number: int, wanted: Wanted, slices: Slices) -> FetchSlices:
    return FetchSlices(
        number=number,
        ticket=slices.ticket,
        addresses=slices.addresses,
        spans=wanted.path.spans,
        token_ids=wanted.tokens.astype("<i4", copy=False).tobytes(),
        block_keys=wanted.block_keys,
        block_ids=wanted.block_ids[: wanted.end].astype("<i4", copy=False).tobytes(),
        first=wanted.first,
        end=wanted.end,
        within_s=wanted.deadline - time.monotonic(),
    )
