"""Counts of blocks recomputed instead of loaded, and when a load is to be tried again.

A rate that is never measured never changes. So each `RETRY`th time that something would be refused
it is not.

Knows: counts by key. Does not know: what is refused, or why.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

RETRY = 32
MOST_COUNTED = 4096  # keys; the one that was refused longest ago is forgotten

K = TypeVar("K", bound=Hashable)


class Refusals(Generic[K]):
    """A key has its flow in it: else one could count another's. One owner thread."""

    def __init__(self, most: int = MOST_COUNTED) -> None:
        """Count `most` keys at once: flows come and go as tenants do."""
        self._most = most
        self._times: dict[K, int] = {}  # the one refused longest ago first

    def is_due(self, key: K) -> bool:
        """Return whether the load is to be tried this time."""
        return self._times.get(key, 0) % RETRY == RETRY - 1

    def add(self, key: K) -> None:
        """Count a load that was refused, or tried because it was due."""
        self._times[key] = self._times.pop(key, 0) + 1
        if len(self._times) > self._most:
            del self._times[next(iter(self._times))]
