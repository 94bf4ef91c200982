"""The scheduler's interface to fetches of KV blocks from other engines.

A sequence that waits for a fetch has a lease but no batch slot. When the fetch ends, the fetched
tokens count as computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from engine.sequences.sequence import Sequence


class Fetcher(Protocol):
    """An interface that starts and ends fetches. Used by one thread only."""

    @property
    def is_exporting(self) -> bool:
        """True if blocks are leased for other engines. These leases end soon."""
        ...

    def begin(self, sequence: Sequence, now: float, before: int) -> None:
        """Start to fetch missing blocks of a sequence that has just got its lease.

        Set `Sequence.is_fetching` if the sequence must wait. `before` is the number of tokens that
        will be computed before those of the sequence.
        """
        ...

    def leave(self, sequence: Sequence, now: float) -> None:
        """Stop all writes to a sequence's blocks. Call before its lease is released."""
        ...
