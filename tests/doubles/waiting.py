"""Functions that wait, by polling, for conditions in another process or in a store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


def wait_for(is_so: Callable[[], bool], timeout_s: float, *, every_s: float = 0.05) -> None:
    """Wait until `is_so()`. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s} s")
        time.sleep(every_s)


async def until(is_so: Callable[[], bool], timeout_s: float, *, every_s: float = 0.01) -> None:
    """Wait until `is_so()` on an event loop. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(every_s)
