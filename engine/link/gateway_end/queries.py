"""The open queries of one client, and the tasks that wait for their replies."""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from typing import cast

from msgspec.structs import replace

from engine.errors import EngineError
from engine.link.gateway_end.in_time import in_time
from engine.link.interface import ANSWER_S
from engine.link.query import Query, R, Reply, reply_type
from engine.link.query_messages import QueryMessage


class EngineQueries(ABC):
    """The open queries of one client. Used by one event loop only."""

    def __init__(self) -> None:
        self._query_ids = itertools.count()
        self._replies: dict[str, asyncio.Future[Reply]] = {}

    @abstractmethod
    def _send_query(self, query: QueryMessage) -> None:
        """Send a query to the engine now. Raises EngineUnavailable without a connected engine."""

    async def ask(self, query: Query[R], within_s: float | None = ANSWER_S) -> R:
        """Return the engine's reply to a query. See `Engine.ask`."""
        query = replace(query, query_id=str(next(self._query_ids)))
        self._send_query(cast("QueryMessage", query))
        answer = self._replies[query.query_id] = asyncio.get_running_loop().create_future()
        try:
            reply = await in_time(answer, within_s)
        finally:
            self._replies.pop(query.query_id, None)
        if not isinstance(reply, reply_type(type(query))):
            raise EngineError(f"the engine answered {type(query).__name__} with something else")
        if (error := reply.error()) is not None:
            raise error
        return reply

    def _resolve(self, reply: Reply) -> None:
        answer = self._replies.get(reply.query_id)
        if answer is not None and not answer.done():
            answer.set_result(reply)

    def _fail_queries(self, error: EngineError) -> None:
        for answer in self._replies.values():
            if not answer.done():
                answer.set_exception(error)
