"""The recent flushes. KV blocks that they flushed are not fetched from other engines.

A gateway flushes all engines, but the flush reaches them at different times. Otherwise an engine
that has flushed could fetch the blocks back from an engine that has not flushed yet.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from engine.sequences.sequence import Sequence

MOST = 32  # maximum number of scopes of one flow


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
    """The scopes of recent flushes, each kept for `seconds`. Used by one thread only.

    After more than `MOST` flushes of a flow's namespaces, the whole flow counts as flushed. So a
    flow that flushes often takes little time of other flows.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        # times until which scopes are kept, by flow and namespace; the latest flow comes last
        self._until: dict[str | None, dict[bytes | None, float]] = {}

    def add(self, scope: FlushScope, now: float) -> None:
        """Add a scope that was flushed just now."""
        self._forget_old(now)
        flushed, until = self._until.pop(scope.flow, {}), now + self._seconds
        kept = {one: then for one, then in flushed.items() if then > now}
        kept[scope.namespace] = until
        self._until[scope.flow] = kept if len(kept) <= MOST else {None: until}

    def covers(self, sequence: Sequence, now: float) -> bool:
        """Return whether blocks that a sequence would fetch may have been flushed."""
        return any(
            until > now and FlushScope(flow, namespace).covers(sequence)
            for flow in (None, sequence.flow)
            for namespace, until in self._until.get(flow, {}).items()
        )

    def _forget_old(self, now: float) -> None:
        for flow, flushed in list(islice(self._until.items(), 2)):
            if all(until <= now for until in flushed.values()):
                del self._until[flow]
