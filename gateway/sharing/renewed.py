"""The state that is passed on to engines, read again on news and every REFRESH_S.

Knows: when to look. Does not know: at what.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress

from engine.errors import EngineError
from gateway.errors import Unavailable

REFRESH_S = 2.0  # after which a change made by another worker is noticed


class Renewed(ABC):
    """A `gateway.state.store.Listener`. For one event loop."""

    def __init__(self) -> None:
        self._news = asyncio.Event()

    def forget(self, changed_id: str) -> None:
        """Reload: something may have changed."""
        del changed_id
        self.reload()

    def reload(self) -> None:
        """Look again, soon."""
        self._news.set()

    @abstractmethod
    async def renew(self) -> None:
        """Look now; raises Unavailable."""

    async def changed(self) -> None:
        """Look now or, if that fails, soon: the change itself has been made."""
        try:
            await self.renew()
        except (Unavailable, EngineError):
            self.reload()

    async def renew_when_due(self) -> None:
        """Wait until it is time, and look; what the state does not say now it says next time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(REFRESH_S):
                await self._news.wait()
        self._news.clear()
        with suppress(Unavailable, EngineError):
            await self.renew()
