"""The operator's and the tenants' questions to the engine, with a deadline.

An engine that hangs must not hang the routes that would show that it does.

Knows: queries, and how long they may take. Does not know: who may ask what (`admin`, `prefixes`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from engine.errors import EngineUnavailable
from engine.link.interface import Engine, ReplicaHealth
from engine.link.messages import Welcome
from engine.link.query_messages import UNRECORDED, MarkedPrefix, Probed
from engine.link.stats_messages import EngineStats
from engine.link.view_messages import Overview, Prefixes, PrefixOrder, Sequences, TreeLevel

T = TypeVar("T")

DEADLINE_S = 5.0


class BoundedEngine:
    """An engine that answers within `deadline_s` seconds, or EngineUnavailable is raised."""

    def __init__(self, engine: Engine, deadline_s: float = DEADLINE_S) -> None:
        self._engine = engine
        self._deadline_s = deadline_s

    @property
    def welcome(self) -> Welcome | None:
        """What the connected engine is; None while none is connected."""
        return self._engine.welcome

    @property
    def is_stalled(self) -> bool:
        """Whether the connected engine's process has stopped."""
        return self._engine.is_stalled

    @property
    def handshake_error(self) -> str | None:
        """Why whoever is at the engine's address hears nothing; None where it may."""
        return self._engine.handshake_error

    @property
    def replicas(self) -> Mapping[str, ReplicaHealth]:
        """The engines that this one consists of; none where it is one alone."""
        return self._engine.replicas

    @property
    def router_answers(self) -> bool | None:
        """Whether the process that chooses among several engines answers; None without one."""
        return self._engine.router_answers

    async def stats(self, *, evictions: int = 0) -> EngineStats:
        """The engine's counters, with the last `evictions` evictions; raises EngineError."""
        return await self._in_time(self._engine.stats(evictions=evictions))

    async def overview(self, *, owners: int = 0, evictions: int = 0) -> Overview:
        """The engine's counters, and what is largest."""
        return await self._in_time(self._engine.overview(owners=owners, evictions=evictions))

    async def sequences(self, limit: int) -> Sequences:
        """The oldest sequences that are alive."""
        return await self._in_time(self._engine.sequences(limit))

    async def tree(self, node: str | None, limit: int) -> TreeLevel:
        """What lies below a node of the tree, or the namespaces."""
        return await self._in_time(self._engine.tree(node, limit))

    async def prefixes(self, order: PrefixOrder, limit: int) -> Prefixes:
        """The hottest or the most wasteful prefixes."""
        return await self._in_time(self._engine.prefixes(order, limit))

    async def flush(self, flow: str | None, flush_id: str = UNRECORDED) -> int:
        """Drop the prefixes of a flow, or all; returns how many blocks."""
        return await self._in_time(self._engine.flush(flow=flow, flush_id=flush_id))

    async def probe(self, token_ids: bytes, namespaces: tuple[tuple[int, bytes], ...]) -> Probed:
        """What a prompt would find."""
        return await self._in_time(self._engine.probe(token_ids, namespaces))

    async def marked(self, flow: str) -> list[MarkedPrefix]:
        """The prefixes that a flow has marked."""
        return await self._in_time(self._engine.marked(flow))

    async def forget_marked(self, flow: str, prefix_id: bytes) -> int | None:
        """Forget one of them; returns the blocks that went, None where there is none."""
        return await self._in_time(self._engine.forget_marked(flow, prefix_id))

    async def _in_time(self, answer: Coroutine[Any, Any, T]) -> T:
        try:
            async with asyncio.timeout(self._deadline_s):
                return await answer
        except TimeoutError as error:
            raise EngineUnavailable("the engine did not answer in time") from error
