"""Waiting for short work even after the waiting task is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

LEAVE_S = 10.0  # seconds for the end of a cancelled request: a step of a running engine


async def outlasting(work: Coroutine[Any, Any, object], most_s: float) -> None:
    """Wait until `work` is done, for at most `most_s` seconds; then cancel it.

    A cancellation meanwhile is raised after that.
    """
    loop = asyncio.get_running_loop()
    task, until = loop.create_task(work), loop.time() + most_s
    cancelled: asyncio.CancelledError | None = None
    while not task.done() and loop.time() < until:
        try:
            await asyncio.wait([task], timeout=until - loop.time())
        except asyncio.CancelledError as error:
            cancelled = error
    task.cancel()
    if cancelled is not None:
        raise cancelled
