"""The gateway's end of the link.

Knows: request ids, events, connection state. Does not know: HTTP, tenants or prompts.

Every connection is a new socket, so nothing of a dead engine can be heard by its successor:

    open socket -> Hello -> Welcome ... events ... -> the peer is gone, or silent for too long
         ^                                                |
         `------- every running request fails <-----------'

An engine that hangs keeps its connections. So one that says nothing is greeted again, once a
second; it answers between two steps, and what it says on a connection given up is not heard.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from typing import Any, TypeAlias

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from engine.codec import Codec, DecodeError, EncodeError
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
    Hello,
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
from engine.stats_messages import EngineStats

_Reply: TypeAlias = Flushed | Pinned | Unpinned | StatsReply
_Socket: TypeAlias = "zmq.Socket[bytes]"
_Answer: TypeAlias = "asyncio.Future[_Reply]"

RETRY_AFTER_S = 2.0  # an engine that died is back within seconds
RECONNECT_MS = 50
BEAT_S = 1.0
# Between two steps an engine always answers, so these are bounds on what one step may take.
SILENCE_S = {"cpu": 120.0, "cuda": 10.0}
_FRAMES_AT_ONCE = 64  # then others have their turn of the loop


class EngineClient:
    """An `Engine` behind a Unix socket. Belongs to one event loop; reconnects by itself."""

    def __init__(
        self, socket_path: str, *, codec: Codec | None = None, silence_s: float | None = None
    ) -> None:
        """`silence_s` is how long an engine may say nothing (None: by its device)."""
        self._path = socket_path
        self._silence_s = silence_s
        self._has_spoken = False  # since the last beat
        self._codec = codec or Codec()
        self._welcome: Welcome | None = None
        self._welcomed = asyncio.Event()
        self._socket: _Socket | None = None
        self._requests: dict[str, Inbox] = {}
        self._left: dict[str, Late] = {}  # cancelled here, and not yet ended by the engine
        self._queries: dict[str, _Answer] = {}
        self._query_ids = itertools.count()
        self._nonsense = asyncio.Event()  # the engine said what is no message
        self._serving: asyncio.Task[None] | None = None

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
        try:
            while True:
                for event in await inbox.take():
                    if isinstance(event, Tokens):
                        yield event
                    elif isinstance(event, Finished):
                        yield event
                        return
                    else:
                        raise _as_error(event)
        finally:
            # Still in the book: the caller left before the engine was done.
            if self._requests.get(request.request_id) is inbox:
                del self._requests[request.request_id]
                if self._say(Cancel(request.request_id)) and late is not None:
                    self._left[request.request_id] = late

    async def stats(self, *, evictions: int = 0) -> EngineStats:
        """The engine's counters, and so many of the last evictions between flows.

        EngineUnavailable while none is connected.
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

    # What callers say

    def _begin(self, request: Generate) -> Inbox:
        if request.request_id in self._requests:
            raise InvalidRequest("this request id is already running")
        if self._welcome is None or not self._say(request):
            raise EngineUnavailable("no engine is connected", retry_after_s=RETRY_AFTER_S)
        inbox = Inbox()
        self._requests[request.request_id] = inbox
        return inbox

    async def _ask(self, query_id: str, query: ToEngine) -> _Reply:
        if self._welcome is None or not self._say(query):
            raise EngineUnavailable("no engine is connected", retry_after_s=RETRY_AFTER_S)
        answer: _Answer = asyncio.get_running_loop().create_future()
        self._queries[query_id] = answer
        try:
            return await answer
        finally:
            self._queries.pop(query_id, None)

    def _say(self, message: ToEngine) -> bool:
        """Hand a message to the socket now; False when there is no peer to take it."""
        if self._socket is None:
            return False
        try:
            frame = self._codec.encode(message)
        except EncodeError as error:
            raise InvalidRequest(str(error)) from error
        try:
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        self._listen_again(self._socket)
        return True

    # What the engine says

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
        """Give an event to its request; of what comes after a cancel only the end is told."""
        if isinstance(event, Tokens):
            inbox = self._requests.get(event.request_id)
        else:
            inbox = self._requests.pop(event.request_id, None)
        if inbox is not None:
            inbox.put(event)
        elif not isinstance(event, Tokens):
            late = self._left.pop(event.request_id, None)
            if late is not None and isinstance(event, Finished):
                late(event)

    def _greet(self, welcome: Welcome) -> None:
        if self._welcome is not None and self._welcome.engine_id != welcome.engine_id:
            self._forsake()
        self._welcome = welcome
        self._welcomed.set()

    # The connection

    async def _serve(self) -> None:
        context: zmq.Context[_Socket] = zmq.Context()
        try:
            while True:
                await self._connection(context)
        finally:
            context.destroy(linger=0)

    async def _connection(self, context: zmq.Context[_Socket]) -> None:
        """One connection, from the socket's opening to the peer's end."""
        socket = _open(context, self._path, self._codec.max_frame_bytes)
        monitor = zmq.asyncio.Socket.from_socket(socket.get_monitor_socket(zmq.EVENT_DISCONNECTED))
        loop = asyncio.get_running_loop()
        gone = asyncio.create_task(self._peer_gone(socket, monitor), name="engine-client-monitor")
        self._nonsense.clear()
        nonsense = asyncio.create_task(self._nonsense.wait(), name="engine-client-nonsense")
        silent = asyncio.create_task(self._silent(), name="engine-client-silence")
        ends: tuple[asyncio.Task[Any], ...] = (gone, nonsense, silent)
        try:
            loop.add_reader(socket.FD, self._listen, socket)
            self._socket = socket
            self._say(Hello())
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._socket = None
            loop.remove_reader(socket.FD)
            self._forsake("the engine does not answer" if silent.done() else "the engine died")
            for end in ends:
                end.cancel()
            try:
                await asyncio.wait(ends)
            finally:
                socket.disable_monitor()
                monitor.close(linger=0)
                socket.close(linger=0)

    def _listen(self, socket: _Socket) -> None:
        """Hear what has come, until it is nonsense: then the connection begins anew."""
        if socket is not self._socket:
            return  # it was closed meanwhile
        try:
            for _ in range(_FRAMES_AT_ONCE):
                self._hear(self._codec.decode_from_engine(socket.recv(zmq.NOBLOCK)))
                self._has_spoken = True
        except zmq.Again:
            return
        except DecodeError:
            self._nonsense.set()  # another version's engine, or a broken one
        else:
            self._listen_again(socket)

    def _listen_again(self, socket: _Socket) -> None:
        """The descriptor tells of news once, and whatever is done with the socket takes note."""
        asyncio.get_running_loop().call_soon(self._listen, socket)

    async def _peer_gone(self, socket: _Socket, monitor: zmq.asyncio.Socket) -> None:
        """Return once the peer is gone and what it said last has been heard."""
        while (await recv_monitor_message(monitor))["event"] != zmq.EVENT_DISCONNECTED:
            continue
        while socket.poll(0) and not self._nonsense.is_set():
            self._listen(socket)
            await asyncio.sleep(0)

    async def _silent(self) -> None:
        """Return once a connected engine has said nothing for too long.

        Beats are counted, not seconds: time in which this process did not run counts for one.
        """
        missed = 0
        while self._welcome is None or missed * BEAT_S < self._patience(self._welcome):
            self._has_spoken = False
            if self._welcome is not None:
                self._say(Hello())
            await asyncio.sleep(BEAT_S)
            missed = 0 if self._has_spoken else missed + 1

    def _patience(self, welcome: Welcome) -> float:
        usual = SILENCE_S["cuda" if welcome.device.startswith("cuda") else "cpu"]
        return usual if self._silence_s is None else self._silence_s

    def _forsake(self, why: str = "the engine died") -> None:
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


def _as_error(event: Failed | EngineError) -> EngineError:
    if isinstance(event, EngineError):
        return event
    return error_from_code(event.code, event.message, event.retry_after_s)


def _open(context: zmq.Context[_Socket], path: str, max_frame_bytes: int) -> _Socket:
    socket = context.socket(zmq.DEALER)
    socket.set(zmq.LINGER, 0)
    # Not IMMEDIATE: that drops what the engine said last. Nothing is queued to an absent engine
    # all the same, since requests are taken only after its welcome.
    socket.set(zmq.SNDHWM, 0)
    socket.set(zmq.RCVHWM, 0)
    socket.set(zmq.MAXMSGSIZE, max_frame_bytes)
    socket.set(zmq.RECONNECT_IVL, RECONNECT_MS)
    socket.connect(f"ipc://{path}")
    return socket
