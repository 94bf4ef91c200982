"""The turns of tenants at a shared resource. Each tenant's work runs one piece at a time.

Each tenant therefore has at most one piece in the resource's own queue. That queue, in order of
arrival, then serves the tenants in turn, and a tenant's many pieces wait only for each other.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TypeVar
from weakref import WeakValueDictionary

from gateway.errors import TooManyRequests

T = TypeVar("T")

_RETRY_S = 1.0


class _Turn:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.takers = 0


class TenantTurns:
    """The turns of all tenants at one resource. Used in one event loop."""

    def __init__(self, most_waiting: int = sys.maxsize) -> None:
        """Let at most `most_waiting` pieces of a tenant's work wait for its running piece."""
        self._most_takers = most_waiting + 1
        self._turns: WeakValueDictionary[str | None, _Turn] = WeakValueDictionary()

    @asynccontextmanager
    async def of(self, tenant_id: str | None) -> AsyncIterator[None]:
        """Hold the tenant's turn once it has come.

        Raises TooManyRequests if too many pieces of the tenant's work wait for turns.
        """
        turn = self._turns.setdefault(tenant_id, _Turn())
        if turn.takers >= self._most_takers:
            raise TooManyRequests(
                f"{self._most_takers} of this tenant's requests for the same wait or run already",
                retry_after_s=_RETRY_S,
            )
        turn.takers += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.takers -= 1


async def seen_out(work: Awaitable[T]) -> T:
    """Return the result of work that cannot be stopped. A cancellation waits for the work's end.

    A tenant's turn therefore lasts as long as its work in a thread, even if the client has
    disconnected.
    """
    future = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        if not future.cancelled():
            future.exception()  # marks the error as read, since nobody is left to read it
        raise
