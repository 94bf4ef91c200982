"""The queue of charges that could not be written yet.

The queue has a limit, and logs lost charges.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import TypeVar

MOST = 10_000

T = TypeVar("T")

_LOG = logging.getLogger(__name__)


def uncounted() -> None:
    """Ignore a lost charge: the default of `on_lost`."""


class Unpaid(deque[T]):
    """A queue of charges. Adding at one end of a full queue loses the charge at the other end."""

    def __init__(self, most: int = MOST, on_lost: Callable[[], None] = uncounted) -> None:
        super().__init__(maxlen=most)
        self.lost = 0
        self._on_lost = on_lost

    def append(self, one: T, /) -> None:
        """Add a charge at the end. If the queue is full, the first charge is lost."""
        self._make_place()
        super().append(one)

    def appendleft(self, one: T, /) -> None:
        """Put a charge back at the front. If the queue is full, the last charge is lost."""
        self._make_place()
        super().appendleft(one)

    def _make_place(self) -> None:
        if len(self) == self.maxlen:
            self.lost += 1
            self._on_lost()
            # log the first loss, the second, the fourth, the eighth, ...
            if self.lost.bit_count() == 1:
                _LOG.error("charges that could not be written are lost: %d so far", self.lost)
