"""The periodic tasks of the gateway, which continue after any error.

A task handles expected failures itself, such as an absent store or an engine that restarts. Any
other error would silently end the task until the next restart. Its work, such as storing usage,
would stop.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

RETRY_S = 1.0

_LOG = logging.getLogger(__name__)


@asynccontextmanager
async def repeated(turn: Callable[[], Awaitable[None]], name: str) -> AsyncIterator[None]:
    """Await `turn` again and again while this context is open.

    `turn` itself waits until its work is due. A turn that raises is tried again after RETRY_S. Only
    the first of several failures in a row is logged.
    """
    task = asyncio.create_task(_repeat(turn, name), name=name)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _repeat(turn: Callable[[], Awaitable[None]], name: str) -> None:
    has_failed = False
    while True:
        try:
            await turn()
        except Exception:  # noqa: BLE001  a process loop: nobody else would notice its end
            if not has_failed:
                _LOG.exception("%s failed, and is tried again", name)
            has_failed = True
            await asyncio.sleep(RETRY_S)
        else:
            has_failed = False
