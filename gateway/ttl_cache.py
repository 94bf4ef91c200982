"""A small mapping whose entries expire; when it is full, the oldest make room.

Knows: time and size. Does not know: what it holds. One task at a time; no locks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class TtlCache(Generic[K, V]):
    """At most `max_entries` entries, each for `ttl_s` seconds of `monotonic`."""

    def __init__(self, *, max_entries: int, ttl_s: float, monotonic: Callable[[], float]) -> None:
        self._max_entries = max_entries
        self._ttl_s = ttl_s
        self._monotonic = monotonic
        self._entries: OrderedDict[K, tuple[float, V]] = OrderedDict()  # oldest first

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """The value kept for `key`; None when there is none or its time is over."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        deadline, value = entry
        if self._monotonic() < deadline:
            return value
        del self._entries[key]
        return None

    def put(self, key: K, value: V) -> None:
        """Keep `value` from now on; the oldest entries make room."""
        self._entries.pop(key, None)
        while len(self._entries) >= self._max_entries:
            self._entries.popitem(last=False)
        self._entries[key] = (self._monotonic() + self._ttl_s, value)

    def remove(self, key: K) -> None:
        """Forget `key`, if it is there."""
        self._entries.pop(key, None)

    def discard(self, is_meant: Callable[[V], bool]) -> None:
        """Forget every entry whose value `is_meant` picks."""
        for key in [key for key, (_, value) in self._entries.items() if is_meant(value)]:
            del self._entries[key]

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
