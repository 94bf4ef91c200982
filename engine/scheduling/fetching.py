"""The scheduler's view of blocks fetched from another engine (`engine.exchange`).

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
    """Fetches as the scheduler starts and leaves them. One owner thread."""

    @property
    def is_exporting(self) -> bool:
        """True if blocks are exported to other engines, and will be free before long."""
        ...

    def begin(self, sequence: Sequence, now: float, before: int) -> None:
        """Ask for what a sequence, which has just been given its lease, could fetch.

        Sets `Sequence.is_fetching` where it is to wait. `before`: tokens to be computed before its
        own.
        """
        ...

    def leave(self, sequence: Sequence, now: float) -> None:
        """Stop all writes to a sequence's blocks before its lease is given back."""
        ...
