"""Waiting until short work ends, even if the waiting task is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

LEAVE_S = 10.0  # maximum seconds until a cancelled request ends, after the running step


_SLICES = 20  # `most_s` is over after this many turns of the event loop at the earliest


async def outlasting(work: Coroutine[Any, Any, object], most_s: float) -> None:
    """Wait until `work` is done, for at most `most_s` seconds, then cancel it.

    Time in which the event loop is held up does not count. If the caller is cancelled meanwhile,
    CancelledError is raised after the wait.
    """
    loop = asyncio.get_running_loop()
    task, left = loop.create_task(work), most_s
    cancelled: asyncio.CancelledError | None = None
    while not task.done() and left > 0:
        at_once, since = min(left, most_s / _SLICES), loop.time()
        try:
            await asyncio.wait([task], timeout=at_once)
        except asyncio.CancelledError as error:
            cancelled = error
        left -= min(loop.time() - since, at_once)
    task.cancel()
    if cancelled is not None:
        raise cancelled
