"""The scheduler's interface to fetches of KV blocks from other engines.

A fetching sequence has a lease but no batch slot. The fetched tokens count as computed when the
fetch ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from engine.sequences.sequence import Sequence


class Fetcher(Protocol):
    """An interface that starts and ends fetches. Used by one thread only."""

    @property
    def is_exporting(self) -> bool:
        """True if other engines hold leases on blocks, which they release soon."""
        ...

    def begin(self, sequence: Sequence, now: float, before: int) -> None:
        """Fetch missing blocks of a sequence that has just got its lease.

        Set `Sequence.is_fetching` if the sequence must wait. `before` is the number of tokens to
        compute before the sequence.
        """
        ...

    def leave(self, sequence: Sequence, now: float) -> None:
        """Stop all writes to a sequence's blocks before its lease is released."""
        ...
