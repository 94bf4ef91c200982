"""What a gateway asks of the engine itself: each query, and the one reply to it.

Knows: queries, replies, and who waits for which. Does not know: connections, or requests
(`client.py`).
"""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from typing import Any, TypeVar

from engine.errors import EngineError, error_from_code
from engine.link.interface import PinnedPrefix
from engine.link.query_messages import (
    UNRECORDED,
    Flush,
    Flushed,
    ForgetMarked,
    ListMarked,
    MarkedForgotten,
    MarkedPrefix,
    MarkedPrefixes,
    Pin,
    Pinned,
    Probe,
    Probed,
    Query,
    Reply,
    StatsQuery,
    StatsReply,
    Unpin,
    Unpinned,
)
from engine.link.stats_messages import EngineStats
from engine.link.view_messages import (
    Overview,
    OverviewQuery,
    Prefixes,
    PrefixesQuery,
    PrefixOrder,
    Sequences,
    SequencesQuery,
    TreeLevel,
    TreeQuery,
)

R = TypeVar("R", bound=Reply)
_QUERIES: dict[type[Any], str] = {
    Flushed: "a flush",
    Pinned: "a pin",
    Unpinned: "an unpin",
    Probed: "a probe",
    MarkedPrefixes: "a list of marked prefixes",
    MarkedForgotten: "the end of a mark",
    StatsReply: "a stats query",
    Overview: "an overview query",
    Sequences: "a list of sequences",
    TreeLevel: "a walk of the tree",
    Prefixes: "a list of prefixes",
}


class EngineQueries(ABC):
    """The queries of one client. Belongs to one event loop."""

    def __init__(self) -> None:
        self._query_ids = itertools.count()
        self._replies: dict[str, asyncio.Future[Reply]] = {}  # to open queries, by their ids

    @abstractmethod
    def _send_query(self, query: Query) -> None:
        """Hand a query to the engine now; EngineUnavailable when there is none to take it."""

    async def stats(self, *, evictions: int = 0) -> EngineStats:
        query = StatsQuery(self._new_id(), evictions)
        return (await self._ask(query, StatsReply)).stats

    async def overview(self, *, owners: int = 0, evictions: int = 0) -> Overview:
        query = OverviewQuery(query_id=self._new_id(), owners=owners, evictions=evictions)
        return await self._ask(query, Overview)

    async def sequences(self, limit: int) -> Sequences:
        return await self._ask(SequencesQuery(query_id=self._new_id(), limit=limit), Sequences)

    async def tree(self, node: str | None, limit: int) -> TreeLevel:
        return await self._ask(
            TreeQuery(query_id=self._new_id(), node=node, limit=limit), TreeLevel
        )

    async def prefixes(self, order: PrefixOrder, limit: int) -> Prefixes:
        query = PrefixesQuery(query_id=self._new_id(), order=order, limit=limit)
        return await self._ask(query, Prefixes)

    async def flush(
        self,
        *,
        flow: str | None = None,
        namespace: bytes | None = None,
        flush_id: str = UNRECORDED,
    ) -> int:
        query = Flush(query_id=self._new_id(), flow=flow, namespace=namespace, flush_id=flush_id)
        return (await self._ask(query, Flushed)).blocks

    async def pin(self, prefix: PinnedPrefix) -> int:
        query = Pin(
            query_id=self._new_id(),
            pin_id=prefix.pin_id,
            token_ids=prefix.token_ids,
            namespace=prefix.namespace,
            block_keys=prefix.block_keys,
        )
        reply = await self._ask(query, Pinned)
        if reply.code is not None:
            raise error_from_code(reply.code, reply.message, reply.retry_after_s)
        return reply.blocks

    async def unpin(self, pin_id: str) -> int:
        query = Unpin(query_id=self._new_id(), pin_id=pin_id)
        return (await self._ask(query, Unpinned)).blocks

    async def probe(self, token_ids: bytes, namespaces: tuple[tuple[int, bytes], ...]) -> Probed:
        query = Probe(query_id=self._new_id(), token_ids=token_ids, namespaces=namespaces)
        reply = await self._ask(query, Probed)
        if reply.code is not None:
            raise error_from_code(reply.code, reply.message, None)
        return reply

    async def marked(self, flow: str) -> list[MarkedPrefix]:
        query = ListMarked(query_id=self._new_id(), flow=flow)
        return (await self._ask(query, MarkedPrefixes)).prefixes

    async def forget_marked(
        self, flow: str, prefix_id: bytes, *, is_marked: bool = True
    ) -> int | None:
        query = ForgetMarked(
            query_id=self._new_id(), flow=flow, prefix_id=prefix_id, is_marked=is_marked
        )
        return (await self._ask(query, MarkedForgotten)).blocks

    def _new_id(self) -> str:
        """An id that no query of this client has had."""
        return str(next(self._query_ids))

    async def _ask(self, query: Query, kind: type[R]) -> R:
        """The reply to a query; raises EngineUnavailable if none comes."""
        self._send_query(query)
        self._replies[query.query_id] = asyncio.get_running_loop().create_future()
        try:
            reply = await self._replies[query.query_id]
        finally:
            self._replies.pop(query.query_id, None)
        if not isinstance(reply, kind):
            raise EngineError(f"the engine answered {_QUERIES[kind]} with something else")
        return reply

    def _resolve(self, reply: Reply) -> None:
        answer = self._replies.get(reply.query_id)
        if answer is not None and not answer.done():
            answer.set_result(reply)

    def _fail_queries(self, error: EngineError) -> None:
        """The engine is gone: whoever waits for a reply gets this error."""
        for answer in self._replies.values():
            if not answer.done():
                answer.set_exception(error)
