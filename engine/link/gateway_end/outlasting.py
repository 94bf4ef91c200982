"""Waiting until a short piece of work ends, even if the waiting task is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

LEAVE_S = 10.0  # maximum seconds to wait until the engine has ended a cancelled request


_SLICES = 20  # minimum number of iterations of the event loop before `most_s` has passed


async def outlasting(work: Coroutine[Any, Any, object], most_s: float) -> None:
    """Wait until `work` is done. Cancel it after `most_s` seconds.

    Time in which the event loop is blocked does not count. If the caller is cancelled during the
    wait, CancelledError is raised after the wait.
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
