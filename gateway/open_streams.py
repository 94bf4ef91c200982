"""How many choices a key may have running at once.

Knows: counts by key id. Does not know: keys or tenants.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.errors import TooManyRequests


class OpenStreams:
    """The choices that run now, by key."""

    def __init__(self, max_per_key: int) -> None:
        self._max_per_key = max_per_key
        self._open: Counter[str] = Counter()

    def __len__(self) -> int:
        """How many choices run now."""
        return self._open.total()

    @contextmanager
    def held(self, key_id: str, choices: int) -> Iterator[None]:
        """Hold room for `choices`; TooManyRequests when the key has not so much left."""
        if self._open[key_id] + choices > self._max_per_key:
            raise TooManyRequests(
                f"a key may have {self._max_per_key} choices running at once", retry_after_s=1.0
            )
        self._open[key_id] += choices
        try:
            yield
        finally:
            self._open[key_id] -= choices
            if not self._open[key_id]:
                del self._open[key_id]
