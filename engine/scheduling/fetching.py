"""The scheduler's interface to fetches of blocks from other engines (`engine.exchange`).

A sequence whose request names a source is given its blocks as any other; then what is not cached
may be fetched into them. Until the fetch is over it waits beside those that wait for loads, with
its lease and without a batch slot. What has come by then counts as computed.

Knows: that a sequence waits. Does not know: for what, or whether it is worth it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from engine.sequences.sequence import Sequence


class Fetcher(Protocol):
    """Starts and ends fetches for the scheduler. One owner thread."""

    @property
    def is_exporting(self) -> bool:
        """True if other engines read blocks, which will soon be free."""
        ...

    def begin(self, sequence: Sequence, now: float, before: int) -> None:
        """Fetch missing blocks of a sequence that has just got its lease.

        Sets `Sequence.is_fetching` where it is to wait. `before`: tokens to be computed before its
        own.
        """
        ...

    def leave(self, sequence: Sequence, now: float) -> None:
        """Stop all writes to a sequence's blocks before its lease is released."""
        ...
