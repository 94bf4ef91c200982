"""The gateway's end of the link: who waits for what, and what becomes of them.

Every connection is a new socket, so nothing of a dead engine can be heard by its successor:

    Hello -> Welcome ... events ... -> the connection is lost
      ^                                    |
      `---- every running request fails <--'

Knows: request ids, events, queries and their answers. Does not know: HTTP, tenants or prompts;
nor sockets, and when an engine counts as gone (`connection`).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import TypeAlias

import zmq

from engine.codec import Codec, EncodeError
from engine.connection import Connection, Socket
from engine.errors import (
    EngineDied,
    EngineError,
    EngineUnavailable,
    InvalidRequest,
    error_from_code,
)
from engine.inbox import Inbox
from engine.interface import Late, PinnedPrefix
from engine.messages import (
    Cancel,
    Event,
    Failed,
    Finished,
    Flush,
    Flushed,
    FromEngine,
    Generate,
    Pin,
    Pinned,
    StatsQuery,
    StatsReply,
    StepReply,
    ToEngine,
    Tokens,
    Unpin,
    Unpinned,
    Welcome,
)
from engine.pulse import Pulse
from engine.stats_messages import EngineStats

_Reply: TypeAlias = Flushed | Pinned | Unpinned | StatsReply
_Answer: TypeAlias = "asyncio.Future[_Reply]"

RETRY_AFTER_S = 2.0  # an engine that died is back within seconds


class EngineClient:
    """An `Engine` behind a Unix socket. Belongs to one event loop; reconnects by itself."""

    def __init__(self, socket_path: str, *, silence_s: float | None = None) -> None:
        """`silence_s` is how long an engine may say nothing (None: by its device)."""
        self._path = socket_path
        self._silence_s = silence_s
        self._codec = Codec()
        self._welcome: Welcome | None = None
        self._welcomed = asyncio.Event()
        self._connection: Connection | None = None
        self._requests: dict[str, Inbox] = {}
        self._left: dict[str, Late] = {}  # cancelled here, and not yet ended by the engine
        self._queries: dict[str, _Answer] = {}
        self._query_ids = itertools.count()
        self._serving: asyncio.Task[None] | None = None
        self._pulse = Pulse()

    @property
    def is_stalled(self) -> bool:
        """Whether the connected engine's process has stopped: it may go on, or be given up."""
        return self._welcome is not None and self._pulse.is_lost

    @property
    def welcome(self) -> Welcome | None:
        """What the connected engine is; None while none is connected."""
        return self._welcome

    async def start(self) -> None:
        """Begin connecting, in the background: the engine may come later."""
        self._serving = asyncio.create_task(self._serve(), name="engine-client")

    async def close(self) -> None:
        """Drop the connection; what still runs fails with EngineDied."""
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait([self._serving])
            self._serving = None

    async def wait_until_welcome(self) -> Welcome:
        """Wait for an engine to be connected."""
        while self._welcome is None:
            await self._welcomed.wait()
        return self._welcome

    async def generate(
        self, request: Generate, late: Late | None = None
    ) -> AsyncGenerator[Tokens | Finished, None]:
        """Yield `Tokens` as they come, then one `Finished`; see `Engine.generate`."""
        inbox = self._begin(request)
        events: Iterator[Event | EngineError] = iter(())
        try:
            while True:
                events = iter(await inbox.take())
                for event in events:
                    if isinstance(event, Tokens):
                        yield event
                    elif isinstance(event, Finished):
                        yield event
                        return
                    else:
                        if isinstance(event, Failed) and late is not None:
                            late(event)
                        raise _as_error(event)
        finally:
            # Still registered: the caller left before the engine was done.
            if self._requests.get(request.request_id) is inbox:
                del self._requests[request.request_id]
                if self._say(Cancel(request.request_id)) and late is not None:
                    self._left[request.request_id] = late
            elif late is not None:  # the end may have come and not been read
                _tell_end([*events, *inbox.left()], late)

    async def stats(self, *, evictions: int = 0) -> EngineStats:
        """The engine's counters, and at most `evictions` of the last ones between flows.

        Raises EngineUnavailable while no engine is connected, as `flush` and `unpin` do.
        """
        query_id = str(next(self._query_ids))
        reply = await self._ask(query_id, StatsQuery(query_id, evictions))
        if not isinstance(reply, StatsReply):
            raise EngineError("the engine answered a stats query with something else")
        return reply.stats

    async def flush(self, *, flow: str | None = None, namespace: bytes | None = None) -> int:
        """Forget cached prefixes of a flow, a namespace, or all; returns the blocks forgotten."""
        query_id = str(next(self._query_ids))
        reply = await self._ask(query_id, Flush(query_id=query_id, flow=flow, namespace=namespace))
        if not isinstance(reply, Flushed):
            raise EngineError("the engine answered a flush with something else")
        return reply.blocks

    async def pin(self, prefix: PinnedPrefix) -> int:
        """Keep a prefix on the device for good; see `Engine.pin`."""
        query_id = str(next(self._query_ids))
        query = Pin(
            query_id=query_id,
            pin_id=prefix.pin_id,
            token_ids=prefix.token_ids,
            namespace=prefix.namespace,
            block_keys=prefix.block_keys,
        )
        reply = await self._ask(query_id, query)
        if not isinstance(reply, Pinned):
            raise EngineError("the engine answered a pin with something else")
        if reply.code is not None:
            raise error_from_code(reply.code, reply.message, reply.retry_after_s)
        return reply.blocks

    async def unpin(self, pin_id: str) -> int:
        """Let a pinned prefix go; returns its blocks, 0 where it was not pinned."""
        query_id = str(next(self._query_ids))
        reply = await self._ask(query_id, Unpin(query_id=query_id, pin_id=pin_id))
        if not isinstance(reply, Unpinned):
            raise EngineError("the engine answered an unpin with something else")
        return reply.blocks

    # From callers to the engine

    def _begin(self, request: Generate) -> Inbox:
        if request.request_id in self._requests:
            raise InvalidRequest("this request id is already running")
        self._check_is_there()
        if not self._say(request):
            raise _none_connected()
        inbox = Inbox()
        self._requests[request.request_id] = inbox
        return inbox

    async def _ask(self, query_id: str, query: ToEngine) -> _Reply:
        self._check_is_there()
        if not self._say(query):
            raise _none_connected()
        answer: _Answer = asyncio.get_running_loop().create_future()
        self._queries[query_id] = answer
        try:
            return await answer
        finally:
            self._queries.pop(query_id, None)

    def _check_is_there(self) -> None:
        if self._welcome is None:
            raise _none_connected()
        if self.is_stalled:
            raise EngineUnavailable("the engine does not answer", retry_after_s=RETRY_AFTER_S)

    def _say(self, message: ToEngine) -> bool:
        """Hand a message to the engine now; False when there is none to take it."""
        if self._connection is None:
            return False
        try:
            return self._connection.say(message)
        except EncodeError as error:
            raise InvalidRequest(str(error)) from error

    # From the engine to callers

    def _hear(self, message: FromEngine) -> None:
        if isinstance(message, StepReply):
            for event in message.events:
                self._deliver(event)
        elif isinstance(message, Welcome):
            self._greet(message)
        else:
            answer = self._queries.get(message.query_id)
            if answer is not None and not answer.done():
                answer.set_result(message)

    def _deliver(self, event: Event) -> None:
        """Give an event to its request; after a cancel, only the end is passed on (to `late`)."""
        if isinstance(event, Tokens):
            inbox = self._requests.get(event.request_id)
        else:
            inbox = self._requests.pop(event.request_id, None)
        if inbox is not None:
            inbox.put(event)
        elif not isinstance(event, Tokens):
            late = self._left.pop(event.request_id, None)
            if late is not None:
                late(event)

    def _greet(self, welcome: Welcome) -> None:
        if self._welcome is not None and self._welcome.engine_id != welcome.engine_id:
            self._forsake("the engine died")
        if self._welcome is None:
            self._pulse.begin_anew()
        self._welcome = welcome
        self._welcomed.set()

    # The connection

    async def _serve(self) -> None:
        context: zmq.Context[Socket] = zmq.Context()
        watching = asyncio.create_task(self._pulse.watch(context, self._path), name="engine-pulse")
        try:
            while True:
                self._connection = Connection(
                    context,
                    self._path,
                    codec=self._codec,
                    silence_s=self._silence_s,
                    hear=self._hear,
                    lose=self._forsake,
                )
                await self._connection.run()
        finally:
            watching.cancel()
            await asyncio.wait([watching])
            context.destroy(linger=0)

    def _forsake(self, why: str) -> None:
        """The engine is gone: whatever waits for it fails now."""
        self._welcome = None
        self._welcomed.clear()
        requests, self._requests = self._requests, {}
        self._left.clear()
        for inbox in requests.values():
            inbox.put(EngineDied(why, retry_after_s=RETRY_AFTER_S))
        for answer in self._queries.values():
            if not answer.done():
                answer.set_exception(EngineUnavailable(why, retry_after_s=RETRY_AFTER_S))


def _none_connected() -> EngineUnavailable:
    return EngineUnavailable("no engine is connected", retry_after_s=RETRY_AFTER_S)


def _tell_end(events: Iterable[Event | EngineError], late: Late) -> None:
    for event in events:
        if isinstance(event, Finished | Failed):
            late(event)


def _as_error(event: Failed | EngineError) -> EngineError:
    if isinstance(event, EngineError):
        return event
    return error_from_code(event.code, event.message, event.retry_after_s)
