"""The gateway's end of the link: running requests, and their ends.

Each connection uses a new socket, so no message for a dead engine reaches its successor:

    Hello -> Welcome ... events ... -> the connection is lost
      ^                                    |
      `---- every running request fails <--'

Elsewhere: the detection of an engine's end (`connection.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from functools import partial

import zmq
from msgspec import structs

from engine.errors import (
    EngineDied,
    EngineError,
    EngineUnavailable,
    InvalidRequest,
    error_from_code,
)
from engine.link.address import as_reached
from engine.link.cache_events import CacheEvents
from engine.link.codec import Codec, EncodeError
from engine.link.event_messages import Event, Failed, Finished, StepReply, Tokens
from engine.link.gateway_end.cache_subscription import CacheSubscription, Listener
from engine.link.gateway_end.connection import Connection, ConnectionState
from engine.link.gateway_end.event_queue import EventQueue
from engine.link.gateway_end.flush_telling import FlushTelling, ReadFlushes, log_failure
from engine.link.gateway_end.outlasting import LEAVE_S, outlasting
from engine.link.gateway_end.queries import EngineQueries
from engine.link.interface import OnEnd, ReplicaHealth
from engine.link.messages import (
    Cancel,
    FlowQuota,
    FromEngine,
    Generate,
    Partition,
    ToEngine,
    Welcome,
)
from engine.link.query_messages import QueryMessage
from engine.link.tcp.curve import FailedHandshakes, LinkKey, Socket

_log = logging.getLogger(__name__)

RETRY_AFTER_S = 2.0  # seconds after which clients retry; an engine that died is restarted soon
HANDSHAKE_RETRY_S = 0.5  # seconds until the next attempt after a failed handshake


class EngineClient(EngineQueries):
    """An `Engine` at an address. It reconnects automatically. Used by one event loop only."""

    def __init__(
        self,
        engine: str,
        *,
        silence_s: float | None = None,
        codec: Codec | None = None,
        key: LinkKey | None = None,
        on_cache_events: Listener | None = None,
        flushes: ReadFlushes | None = None,
    ) -> None:
        """Connect to `engine`, an address.

        The engine's step loop may stall for at most `silence_s` seconds, which by default depends
        on the engine's device. `on_cache_events` is called with the changes of the engine's cache,
        in order. After each connection it first gets a snapshot. `flushes` returns all recorded
        flushes, in the form that `flush_recorded` takes. The client awaits `flushes` after each
        welcome. The engine counts as connected only after that.
        """
        super().__init__()
        self._engine = engine
        self._key = key
        self._silence_s = silence_s
        self._codec = codec or Codec()
        self._welcome: Welcome | None = None
        self._connection: Connection | None = None
        self._requests: dict[str, EventQueue] = {}
        self._on_end: dict[str, OnEnd] = {}
        self._serving: asyncio.Task[None] | None = None
        self._partition: Partition | None = None
        self._on_cache_events = on_cache_events
        self._subscription: CacheSubscription | None = None
        self._flushes = FlushTelling(flushes, self._send)
        self._handshakes = FailedHandshakes(engine)

    @property
    def is_stalled(self) -> bool:
        """True if the connected engine's process is stopped but may be resumed."""
        connection = self._connection
        return connection is not None and connection.state is ConnectionState.SILENT

    @property
    def welcome(self) -> Welcome | None:
        """The description of the connected engine, or None if no engine is connected."""
        return self._welcome

    @property
    def handshake_error(self) -> str | None:
        """The handshake error of the engine, or None if there is none."""
        connection = self._connection
        if self._key is None or connection is None or connection.handshake_failed is False:
            return None
        return self._handshakes.error

    @property
    def is_idle(self) -> bool:
        """True if no request is running. A cancelled request runs until the engine has ended it."""
        return not (self._requests or self._on_end)

    @property
    def replicas(self) -> Mapping[str, ReplicaHealth]:
        """An empty mapping, because the client is one engine."""
        return {}

    @property
    def router_answers(self) -> None:
        """None, because one engine needs no router."""
        return None

    async def start(self) -> None:
        """Start to connect in the background, because the engine may start later."""
        self._serving = asyncio.create_task(self._serve(), name="engine-client")
        # If this task failed, no engine would ever become ready.
        self._serving.add_done_callback(log_failure)

    async def close(self) -> None:
        """Close the connection. Running requests fail with EngineDied."""
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait([self._serving])
            self._serving = None

    async def generate(
        self, request: Generate, on_end: OnEnd | None = None
    ) -> AsyncGenerator[Tokens | Finished, None]:
        """Yield `Tokens` as they arrive, then one `Finished`. See `Engine.generate`."""
        event_queue = self._begin(request, on_end)
        try:
            while True:
                for event in await event_queue.take():
                    if isinstance(event, Tokens):
                        yield event
                    elif isinstance(event, Finished):
                        yield event
                        return
                    else:
                        raise _as_error(event)
        finally:
            # The caller closed the generator before the engine ended the request.
            if self._requests.get(request.request_id) is event_queue:
                self._send(Cancel(request.request_id))
                await outlasting(event_queue.ended(), LEAVE_S)

    def give_up(self, request_id: str, why: str) -> bool:
        """End a request's stream with EngineUnavailable, and cancel it in the engine.

        Later messages of the request are passed only to its `on_end`. Return False, and do nothing,
        if the reader has not taken all events of the request yet.
        """
        event_queue = self._requests.get(request_id)
        if event_queue is None or event_queue.has_any:
            return False
        del self._requests[request_id]
        self._send(Cancel(request_id))
        event_queue.put(EngineUnavailable(why, retry_after_s=RETRY_AFTER_S))
        return True

    def partition(self, flows: Mapping[str, FlowQuota]) -> None:
        """Divide the cache among these flows, now and in every engine that connects later."""
        self._partition = Partition(flows=dict(flows))
        if self._welcome is not None:
            self._send(self._partition)

    def flush_recorded(self, flushes: Mapping[str, str | None]) -> None:
        """Send recorded flushes to the engine, now and whenever an engine connects."""
        self._flushes.tell(flushes, is_connected=self._welcome is not None)

    def _begin(self, request: Generate, on_end: OnEnd | None) -> EventQueue:
        if request.request_id in self._requests:
            raise InvalidRequest("this request id is already running")
        self._send_or_raise(request)
        event_queue = EventQueue()
        self._requests[request.request_id] = event_queue
        if on_end is not None:
            self._on_end[request.request_id] = on_end
        return event_queue

    def _send_query(self, query: QueryMessage) -> None:
        self._send_or_raise(query)

    def _send_or_raise(self, message: Generate | QueryMessage) -> None:
        if self.is_stalled:
            raise EngineUnavailable("the engine does not answer", retry_after_s=RETRY_AFTER_S)
        if self._welcome is None or not self._send(message):
            raise EngineUnavailable("no engine is connected", retry_after_s=RETRY_AFTER_S)

    def _send(self, message: ToEngine) -> bool:
        if self._connection is None:
            return False
        try:
            return self._connection.send(message)
        except EncodeError as error:
            raise InvalidRequest(str(error)) from error

    def _receive(self, message: FromEngine) -> None:
        if isinstance(message, StepReply):
            for event in message.events:
                self._deliver(event)
        elif isinstance(message, Welcome):
            self._flushes.tell_all(partial(self._begin_use, message))
        elif isinstance(message, CacheEvents):
            if self._subscription is not None:
                self._subscription.receive(message)
        else:
            self._resolve(message)

    def _deliver(self, event: Event) -> None:
        if isinstance(event, Tokens):
            event_queue = self._requests.get(event.request_id)
        else:
            event_queue = self._requests.pop(event.request_id, None)
            on_end = self._on_end.pop(event.request_id, None)
            if on_end is not None:
                on_end(event)
        if event_queue is not None:
            event_queue.put(event)

    def _begin_use(self, welcome: Welcome) -> None:
        if self._partition is not None:
            self._send(self._partition)
        if self._on_cache_events is not None:
            self._subscription = CacheSubscription(self._on_cache_events, self._send)
        exchange = welcome.exchange_address
        if exchange is not None:
            exchange = as_reached(exchange, self._engine)
        self._welcome = structs.replace(welcome, exchange_address=exchange)

    async def _serve(self) -> None:
        context: zmq.Context[Socket] = zmq.Context()
        try:
            while True:
                await self._serve_one(context)
        finally:
            context.destroy(linger=0)

    async def _serve_one(self, context: zmq.Context[Socket]) -> None:
        connection = self._connection = Connection(
            context,
            self._engine,
            codec=self._codec,
            silence_s=self._silence_s,
            receive=self._receive,
            key=self._key,
        )
        try:
            await connection.run()
        finally:
            self._fail_all(connection.why_closed)
        await self._after_handshake(failed=connection.handshake_failed is True)

    async def _after_handshake(self, *, failed: bool) -> None:
        is_new = self._handshakes.count(failed=failed)
        if is_new and self.handshake_error is not None:
            _log.error("%s", self.handshake_error)
        if failed:
            await asyncio.sleep(HANDSHAKE_RETRY_S)

    def _fail_all(self, why: str) -> None:
        self._welcome = self._subscription = None
        self._flushes.stop()
        requests, self._requests = self._requests, {}
        self._on_end.clear()
        for event_queue in requests.values():
            event_queue.put(EngineDied(why, retry_after_s=RETRY_AFTER_S))
        self._fail_queries(EngineUnavailable(why, retry_after_s=RETRY_AFTER_S))


def _as_error(event: Failed | EngineError) -> EngineError:
    if isinstance(event, EngineError):
        return event
    return error_from_code(event.code, event.message, event.retry_after_s)
