"""A rank's slices of blocks that rank 0 fetches: asked for, put in place, reported.

    rank 0     FetchSlices -> asked at the address of this rank's number | LeaveSlices
    report     so many have come and were verified | it is over, and why

Knows: addresses, slots. Does not know: sequences, or whether it is worth it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from engine.exchange.fetch import Fetch, Wanted
from engine.exchange.parts import OpenExchange
from engine.ranks.messages import FetchSlices, RankMessage, SlicesFetched
from prefix_cache.namespace import Namespace, NamespacePath
from storage.copies import CopyEvent


@dataclass(slots=True)
class _Fetching:
    fetch: Fetch
    told: int  # blocks that rank 0 knows of


class SliceFetching:
    """What this rank fetches. One owner thread."""

    def __init__(
        self,
        opened: OpenExchange,
        rank: int,
        fingerprint: bytes,
        report: Callable[[RankMessage], None],
    ) -> None:
        """`fingerprint` is that of this rank's slices."""
        self._opened = opened
        self._rank = rank
        self._fingerprint = fingerprint
        self._report = report
        self._under_way: dict[int, _Fetching] = {}  # by rank 0's number

    def begin(self, message: FetchSlices) -> None:
        """Ask the other engine's rank of this number. Raises ThreadEnded."""
        address = message.addresses[self._rank - 1]
        wanted = _wanted(message, address, self._opened.mark())
        fetch = Fetch(wanted, wanted.first, time.monotonic(), self._opened.way_of(address))
        self._under_way[message.number] = _Fetching(fetch, fetch.arrived)
        try:
            self._opened.asking(self._fingerprint).begin(fetch)
        except OSError as error:
            fetch.end(f"it cannot be asked: {error.strerror}")

    def leave(self, number: int) -> None:
        """Write no more of it once this returns."""
        one = self._under_way.pop(number, None)
        if one is not None:  # else it is over
            one.fetch.close()
            if not one.fetch.is_over:
                self._opened.asking(self._fingerprint).leave(one.fetch)

    def turn(self) -> None:
        """Report what has come, and what is over."""
        for number, one in list(self._under_way.items()):
            why = one.fetch.why
            arrived = one.fetch.arrived  # after `why`: it arrives before the end
            if why is not None:
                del self._under_way[number]
                one.fetch.close()  # what failed may be copied still, and its slots are others' soon
            if why is not None or arrived > one.told:
                one.told = arrived
                self._report(SlicesFetched(number, arrived, why))


def _wanted(message: FetchSlices, address: str, mark: CopyEvent) -> Wanted:
    return Wanted(
        address=address,
        path=NamespacePath(tuple((start, Namespace(one)) for start, one in message.spans)),
        tokens=np.frombuffer(message.token_ids, "<i4").astype(np.int32),
        block_keys=message.block_keys,
        block_ids=np.frombuffer(message.block_ids, "<i4").astype(np.int32),
        first=message.first,
        end=message.end,
        flow="",
        request_id=None,
        deadline=time.monotonic() + message.within_s,
        mark=mark,
        ticket=message.ticket,
    )
