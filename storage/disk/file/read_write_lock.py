"""A lock that many threads share, or one thread holds alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_PLACES = 64  # maximum number of threads that share the lock


class ReadWriteLock:
    """A lock in which later readers do not overtake a waiting writer. It is not reentrant."""

    def __init__(self) -> None:
        self._entrance = threading.Lock()
        self._places = threading.Semaphore(_PLACES)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the lock shared, once no thread holds it alone or waits to do so."""
        with self._entrance:
            self._places.acquire()
        try:
            yield
        finally:
            self._places.release()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock alone."""
        with self._entrance:
            for _ in range(_PLACES):
                self._places.acquire()
            try:
                yield
            finally:
                self._places.release(_PLACES)
