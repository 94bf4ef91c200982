"""The scheduler's interface to fetches of blocks from other engines (`engine.exchange`).

A sequence whose request names a source is leased blocks like any other; then blocks that are not
cached may be fetched from the source. Until the fetch is over, the sequence waits beside the
sequences that wait for loads, with its lease and without a batch slot. Tokens that have come by its
end count as computed.

Knows: that a sequence waits for a fetch. Does not know: transports, or whether a fetch is faster
than computing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from engine.sequences.sequence import Sequence


class Fetcher(Protocol):
    """Starts and ends fetches for the scheduler. Used by one thread only."""

    @property
    def is_exporting(self) -> bool:
        """True if blocks are leased to other engines, which release them soon."""
        ...

    def begin(self, sequence: Sequence, now: float, before: int) -> None:
        """Fetch missing blocks of a sequence that has just got its lease.

        Set `Sequence.is_fetching` if the sequence is to wait. `before`: tokens to be computed
        before the sequence's own.
        """
        ...

    def leave(self, sequence: Sequence, now: float) -> None:
        """Stop all writes to a sequence's blocks before its lease is released."""
        ...
