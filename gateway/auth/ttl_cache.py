"""A cache whose entries expire after some seconds."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")
MAX_IDENTITIES = 10_000


class TtlCache(Generic[K, V]):
    """A cache of at most `max_entries` entries, each for `ttl_s` seconds. Used by one task."""

    def __init__(
        self, ttl_s: float, monotonic: Callable[[], float], max_entries: int = MAX_IDENTITIES
    ) -> None:
        self._max_entries = max_entries
        self._ttl_s = ttl_s
        self._monotonic = monotonic
        self._entries: OrderedDict[K, tuple[float, V]] = OrderedDict()  # oldest first

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Return the value of `key`, or None for an unknown or expired key."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        deadline, value = entry
        if self._monotonic() < deadline:
            return value
        del self._entries[key]
        return None

    def put(self, key: K, value: V) -> None:
        """Store `value` under `key`. A full cache removes its oldest entries."""
        self._entries.pop(key, None)
        while len(self._entries) >= self._max_entries:
            self._entries.popitem(last=False)
        self._entries[key] = (self._monotonic() + self._ttl_s, value)

    def remove(self, key: K) -> None:
        """Remove the entry of `key`, if the cache has the key."""
        self._entries.pop(key, None)

    def discard(self, is_meant: Callable[[V], bool]) -> None:
        """Remove every entry for whose value `is_meant` returns True."""
        for key in [key for key, (_, value) in self._entries.items() if is_meant(value)]:
            del self._entries[key]

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()
