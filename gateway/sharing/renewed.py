"""The renewal of values made from the state: on notice of a change, and every REFRESH_S."""

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress

from engine.errors import EngineError
from gateway.errors import Unavailable

REFRESH_S = 2.0  # seconds within which another worker's change is noticed


class Renewed(ABC):
    """The base of listeners (`gateway.state.store.Listener`) that renew themselves.

    Used in one event loop.
    """

    def __init__(self) -> None:
        self._news = asyncio.Event()

    def forget(self, changed_id: str) -> None:
        """Reload, since a record may have changed."""
        del changed_id
        self.reload()

    def reload(self) -> None:
        """Renew from the state, soon."""
        self._news.set()

    @abstractmethod
    async def renew(self) -> None:
        """Renew from the state now; raise Unavailable."""

    async def changed(self) -> None:
        """Renew now, since a change has been made. If this fails, renew soon."""
        try:
            await self.renew()
        except (Unavailable, EngineError):
            self.reload()

    async def renew_when_due(self) -> None:
        """Wait until a renewal is due, and try it. If the state is away, the next call retries."""
        with suppress(TimeoutError):
            async with asyncio.timeout(REFRESH_S):
                await self._news.wait()
        self._news.clear()
        with suppress(Unavailable, EngineError):
            await self.renew()
