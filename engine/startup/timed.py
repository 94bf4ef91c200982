"""The logging of the seconds that each part of a start took."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_log = logging.getLogger(__name__)


@contextmanager
def timed(part: str, clock: Callable[[], float] = time.perf_counter) -> Iterator[None]:
    """Log the seconds that the `with` block took, unless it raises an error."""
    began = clock()
    yield
    _log.info("%s: %.2f s", part, clock() - began)
