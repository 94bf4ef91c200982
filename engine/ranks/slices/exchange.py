"""The exchange of all ranks, as rank 0 sees it: slices of a block go by each rank's own threads.

Knows: what each rank has of a block, and its address. Does not know: what is sent or fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.exchange.exchange import OpenedExchange
from engine.exchange.fetch import Patience, Way
from engine.exchange.parts import Answers, Asks
from engine.ranks.leader import OtherRanks
from engine.ranks.messages import Started
from engine.ranks.runner import RanksRunner
from engine.ranks.slices.fetching import RanksAsking
from engine.ranks.slices.lending import RanksAnswering
from engine.step import Runner
from storage.copies import CopyEvent


class RanksExchange:
    """Implements `OpenExchange`; `own` is this rank's, and closed by who opened it."""

    def __init__(
        self,
        own: OpenedExchange,
        others: OtherRanks,
        started: Sequence[Started],
        catch_up: Callable[[], None],
    ) -> None:
        """`started` has what each of the others has. `catch_up`: as `RanksRunner.catch_up`."""
        self._own = own
        self._others = others
        self._catch_up = catch_up
        self._asking: RanksAsking | None = None
        self.block_bytes = own.block_bytes + sum(one.block_bytes for one in started)
        self.answering: Answers | None = None
        if own.answering is not None:
            addresses = [one.address for one in started if one.address is not None]
            self.answering = RanksAnswering(
                own.answering, others, addresses, self.block_bytes, catch_up
            )

    @property
    def address(self) -> str | None:
        """As `OpenExchange.address`: rank 0's, which tells the others' addresses."""
        return self._own.address

    @property
    def patience(self) -> Patience | None:
        """As `OpenExchange.patience`."""
        return self._own.patience

    def mark(self) -> CopyEvent:
        """As `OpenExchange.mark`, for this rank; each of the others has its own."""
        return self._own.mark()

    def asking(self, fingerprint: bytes) -> Asks:
        """As `OpenExchange.asking`."""
        if self._asking is None:
            own = self._own.asking(fingerprint)
            self._asking = RanksAsking(own, self._others, self._catch_up)
        return self._asking

    def way_of(self, where: str) -> Way:
        """As `OpenExchange.way_of`."""
        return self._own.way_of(where)


def ranks_exchange(
    own: OpenedExchange, others: OtherRanks, started: Sequence[Started], runner: Runner
) -> RanksExchange:
    """That of all ranks, given this rank's; `runner` is that of all."""
    assert isinstance(runner, RanksRunner), "one rank has an exchange of its own"
    return RanksExchange(own, others, started, runner.catch_up)
