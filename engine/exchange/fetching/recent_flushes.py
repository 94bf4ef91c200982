"""The recent flushes. KV blocks that they flushed are not fetched from other engines.

A gateway flushes all engines, but the flush reaches them at different times. Otherwise an engine
that has flushed could fetch the blocks back from an engine that has not flushed yet.
"""

from __future__ import annotations

from typing import NamedTuple

from engine.sequences.sequence import Sequence


class FlushScope(NamedTuple):
    """The scope of a flush: a flow, namespaces with given first bytes, or both. None: all."""

    flow: str | None
    namespace: bytes | None

    def covers(self, sequence: Sequence) -> bool:
        """Return whether this flush may include blocks that the sequence fetches."""
        if self.flow not in (None, sequence.flow):
            return False
        first = self.namespace or b""
        return any(one.startswith(first) for _, one in sequence.path.spans)


class RecentFlushes:
    """The scopes of recent flushes, each kept for `seconds`. Used by one thread only."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: dict[FlushScope, float] = {}

    def add(self, scope: FlushScope, now: float) -> None:
        """Add a scope that was flushed just now."""
        self._until = {one: until for one, until in self._until.items() if until > now}
        self._until[scope] = now + self._seconds

    def covers(self, sequence: Sequence, now: float) -> bool:
        """Return whether blocks that a sequence would fetch may have been flushed."""
        return any(until > now and one.covers(sequence) for one, until in self._until.items())
