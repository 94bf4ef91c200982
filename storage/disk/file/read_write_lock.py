"""A lock that many threads hold at once, or one alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_PLACES = 64  # threads that may share it


class ReadWriteLock:
    """Lock whose waiting writer is not passed by later readers. Not reentrant."""

    def __init__(self) -> None:
        self._entrance = threading.Lock()
        self._places = threading.Semaphore(_PLACES)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold it beside others; waits while somebody has it, or wants it, alone."""
        with self._entrance:
            self._places.acquire()
        try:
            yield
        finally:
            self._places.release()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold it while nobody else does."""
        with self._entrance:
            for _ in range(_PLACES):
                self._places.acquire()
            try:
                yield
            finally:
                self._places.release(_PLACES)
