"""Which of the flushes that gateways have recorded this engine's cache has done.

An engine that was away when a flush was ordered has its blocks still on disk. So gateways tell all
flushes to each engine that they connect to, before anything else, and it does those that it does
not know. What it has done it remembers beside its blocks (`storage.disk`).

Knows: ids. Does not know: how a cache is flushed (`cache_orders`), or who recorded it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class RecordedFlushes:
    """The ids of flushes that are done."""

    def __init__(self, done: Iterable[str] = ()) -> None:
        self._done = set(done)

    def due(self, flushes: Mapping[str, str | None]) -> dict[str, str | None]:
        """Those that are not done."""
        return {one: flow for one, flow in flushes.items() if one not in self._done}

    def note(self, flushes: Iterable[str]) -> None:
        """These are done."""
        self._done.update(flushes)
