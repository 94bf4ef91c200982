"""A connection carries messages both ways, and ends if its peer sends nonsense or stops.

A test chooses the peer's messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from engine.link.address import address
from engine.link.codec import Codec, EncodeError
from engine.link.gateway_end.connection import Connection, ConnectionState
from engine.link.heartbeat import Heartbeat
from engine.link.messages import FromEngine, Hello, ToEngine
from engine.link.query_messages import StatsQuery
from engine.link.tcp.curve import Socket
from tests.doubles.engine.fake_engine import WELCOME

BEAT_S = 0.2
HANGS_S = 20.0  # seconds, reached only by a test that hangs


class Peer:
    """An engine's end of the link, driven by hand."""

    def __init__(self, path: str) -> None:
        Path(path).parent.mkdir(exist_ok=True)
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.bind(f"ipc://{path}")
        self._client = b""
        self._path = path
        self._heartbeat: Heartbeat | None = None
        self.turns = 0  # iterations of its step loop

    async def next(self) -> ToEngine:
        async with asyncio.timeout(HANGS_S):
            self._client, frame = await self._socket.recv_multipart()
        return Codec().decode_to_engine(frame)

    async def say(self, message: FromEngine) -> None:
        await self.send(Codec().encode(message))

    async def send(self, frame: bytes) -> None:
        await self._socket.send_multipart([self._client, frame])

    def begin_heartbeat(self) -> None:
        context: zmq.Context[Socket] = zmq.Context.shadow(self._context.underlying)
        publisher = context.socket(zmq.PUB)
        publisher.bind(address(self._path).heartbeat)
        self._heartbeat = Heartbeat(publisher, lambda: self.turns, every_s=BEAT_S)

    def end_heartbeat(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.close()
            self._heartbeat = None

    def close(self) -> None:
        self.end_heartbeat()
        self._socket.close(linger=1000)  # the last message is still sent
        self._context.destroy(linger=1000)


@dataclass
class Run:
    """A connection that runs in a task, and the messages that it received."""

    connection: Connection
    peer: Peer
    task: asyncio.Task[None]
    heard: asyncio.Queue[FromEngine]

    async def ends(self) -> str:
        async with asyncio.timeout(HANGS_S):
            await self.task
        assert self.connection.state is ConnectionState.CLOSED
        return self.connection.why_closed

    async def until(self, state: ConnectionState) -> None:
        async with asyncio.timeout(HANGS_S):
            while self.connection.state is not state:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@asynccontextmanager
async def running(
    path: str, *, silence_s: float | None = None, codec: Codec | None = None
) -> AsyncIterator[Run]:
    context: zmq.Context[Socket] = zmq.Context()
    heard: asyncio.Queue[FromEngine] = asyncio.Queue()
    connection = Connection(
        context,
        path,
        codec=codec or Codec(),
        silence_s=silence_s,
        receive=heard.put_nowait,
        heartbeat_s=BEAT_S,
    )
    peer = Peer(path)
    task = asyncio.create_task(connection.run())
    try:
        yield Run(connection, peer, task, heard)
    finally:
        task.cancel()
        await asyncio.wait([task])
        peer.close()
        context.destroy(linger=0)


async def test_a_connection_sends_hello_and_passes_messages_both_ways(socket_path: str) -> None:
    async with running(socket_path) as run:
        assert isinstance(await run.peer.next(), Hello)
        await run.peer.say(WELCOME)
        assert await run.heard.get() == WELCOME
        assert run.connection.send(StatsQuery(query_id="1"))
        assert await run.peer.next() == StatsQuery(query_id="1")
        assert run.connection.state is ConnectionState.OPEN
        assert "OPEN" in repr(run.connection)


async def test_nothing_can_be_sent_before_and_after_a_run(socket_path: str) -> None:
    async with running(socket_path) as run:
        assert not run.connection.send(StatsQuery(query_id="early"))  # the task has not started
        assert isinstance(await run.peer.next(), Hello)
        assert run.connection.send(StatsQuery(query_id="1"))
        run.task.cancel()
        await asyncio.wait([run.task])
        assert run.connection.why_closed == "the engine died"
        assert not run.connection.send(StatsQuery(query_id="late"))


async def test_a_peer_that_goes_has_been_heard_to_its_end(socket_path: str) -> None:
    async with running(socket_path) as run:
        await run.peer.next()
        for _ in range(200):
            await run.peer.say(WELCOME)
        run.peer.close()
        assert await run.ends() == "the engine died"
        assert run.heard.qsize() == 200


async def test_nonsense_ends_it(socket_path: str) -> None:
    async with running(socket_path) as run:
        await run.peer.next()
        await run.peer.send(b"\xc1 nonsense")
        assert await run.ends() == "the engine died"
        assert run.heard.empty()


async def test_a_step_loop_that_stands_ends_it_and_one_that_turns_does_not(
    socket_path: str,
) -> None:
    async with running(socket_path, silence_s=0.8) as run:
        run.peer.begin_heartbeat()
        await run.peer.next()
        await run.peer.say(WELCOME)
        # twice the time after which a connection without step-loop iterations ends
        for _ in range(32):
            await asyncio.sleep(0.05)
            run.peer.turns += 1
        assert run.connection.state is ConnectionState.OPEN
        states = set()
        while not run.task.done():
            states.add(run.connection.state)
            await asyncio.sleep(0.02)
        # the engine's process runs, so its heartbeat is heard
        assert ConnectionState.SILENT not in states
        assert await run.ends() == "the engine does not answer"


async def test_a_process_that_stops_is_silent_until_it_goes_on(socket_path: str) -> None:
    async with running(socket_path) as run:
        run.peer.begin_heartbeat()
        await run.peer.next()
        await run.peer.say(WELCOME)
        await run.until(ConnectionState.OPEN)
        run.peer.end_heartbeat()
        await run.until(ConnectionState.SILENT)
        assert run.connection.send(StatsQuery(query_id="1"))  # the engine may recover
        run.peer.begin_heartbeat()
        await run.until(ConnectionState.OPEN)


async def test_one_without_any_heartbeat_is_silent_but_not_at_once(socket_path: str) -> None:
    async with running(socket_path) as run:
        await run.peer.next()
        await asyncio.sleep(0.6)  # the engine's silence before its welcome does not count
        assert run.connection.state is ConnectionState.AWAITING_WELCOME
        await run.peer.say(WELCOME)
        await run.until(ConnectionState.OPEN)
        await run.until(ConnectionState.SILENT)


async def test_a_process_that_stays_stopped_ends_it(socket_path: str) -> None:
    async with running(socket_path, silence_s=1.2) as run:
        await run.peer.next()
        await run.peer.say(WELCOME)
        await run.until(ConnectionState.SILENT)
        assert await run.ends() == "the engine does not answer"


async def test_an_engine_may_be_silent_before_its_welcome(socket_path: str) -> None:
    """Wait for an engine's welcome: an engine binds its socket before it loads its weights."""
    async with running(socket_path, silence_s=0.0) as run:
        await run.peer.next()
        done, _ = await asyncio.wait({run.task}, timeout=0.6)  # longer than a heartbeat's interval
        assert not done
        await run.peer.say(WELCOME)
        assert await run.ends() == "the engine does not answer"


async def test_a_message_too_large_is_refused_here(socket_path: str) -> None:
    async with running(socket_path, codec=Codec(max_frame_bytes=64)) as run:
        await run.peer.next()
        with pytest.raises(EncodeError):
            run.connection.send(StatsQuery(query_id="x" * 100))
        assert run.connection.send(StatsQuery(query_id="1"))  # the connection continues
