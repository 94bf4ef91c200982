"""Counts of refused loads, and the trials that become due.

A copy rate is measured only by loading. So every `RETRY`th load that would be refused is tried.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

RETRY = 32
MOST_COUNTED = 4096  # maximum number of keys; the key refused longest ago is forgotten

K = TypeVar("K", bound=Hashable)


class Refusals(Generic[K]):
    """The numbers of refused loads by key. Keys name flows, so flows do not affect each other."""

    def __init__(self, most: int = MOST_COUNTED) -> None:
        """Count loads for at most `most` keys at a time."""
        self._most = most
        self._times: dict[K, int] = {}  # refusals by key, in order of the last refusal

    def is_due(self, key: K) -> bool:
        """Return whether a load with this key is now due as a trial."""
        return self._times.get(key, 0) % RETRY == RETRY - 1

    def add(self, key: K) -> None:
        """Count a load that was refused, or that was tried because a trial was due."""
        self._times[key] = self._times.pop(key, 0) + 1
        if len(self._times) > self._most:
            del self._times[next(iter(self._times))]
