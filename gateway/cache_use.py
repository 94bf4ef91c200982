"""Blocks that tenants wrote into the cache and that nobody read, as the engine counts them.

The engine is asked at most once in KEPT_S seconds, however often tenants ask: to answer, it has
to walk through its tree.

Knows: that a flow in the engine is a tenant here. Does not know: who may see whose.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from engine.errors import EngineError
from engine.stats_messages import EngineStats
from gateway.admin.bounded_engine import BoundedEngine

KEPT_S = 5.0


class CacheUse(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant's blocks in the cache since the engine started."""

    tenant_id: str
    block_size: int  # tokens
    written_blocks: int
    unread_blocks: int  # of those written: found by no request so far


class CacheUses:
    """The engine's counts, a few seconds old at most. For one event loop."""

    def __init__(self, engine: BoundedEngine, clock: Callable[[], float]) -> None:
        """`clock` gives seconds and may jump."""
        self._engine = engine
        self._clock = clock
        self._asking = asyncio.Lock()
        self._asked: tuple[float, EngineStats | None] | None = None

    async def of(self, tenant_id: str | None) -> list[CacheUse] | None:
        """One tenant's use, or everybody's; None while no engine answers."""
        async with self._asking:
            stats = await self._stats()
        if stats is None:
            return None
        return [
            CacheUse(
                tenant_id=flow,
                block_size=stats.pool.block_size,
                written_blocks=used.written_blocks,
                unread_blocks=used.unread_blocks,
            )
            for flow, used in sorted(stats.flows.items())
            if tenant_id in (None, flow)
        ]

    async def _stats(self) -> EngineStats | None:
        now = self._clock()
        if self._asked is None or not 0 <= now - self._asked[0] < KEPT_S:
            self._asked = (now, await self._ask())
        return self._asked[1]

    async def _ask(self) -> EngineStats | None:
        try:
            return await self._engine.stats()
        except EngineError:
            return None
