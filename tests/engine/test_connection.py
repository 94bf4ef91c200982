"""One connection, before a peer that says what a test has it say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from engine.codec import Codec, EncodeError
from engine.connection import Connection, Socket
from engine.messages import FromEngine, Hello, StatsQuery, ToEngine
from tests.doubles.fake_engine import WELCOME

HANGS_S = 20.0  # a bound on hanging, not a measurement


class Peer:
    """An engine's end of the link, by hand."""

    def __init__(self, path: str) -> None:
        Path(path).parent.mkdir(exist_ok=True)
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.bind(f"ipc://{path}")
        self._client = b""

    async def next(self) -> ToEngine:
        async with asyncio.timeout(HANGS_S):
            self._client, frame = await self._socket.recv_multipart()
        return Codec().decode_to_engine(frame)

    async def say(self, message: FromEngine) -> None:
        await self.send(Codec().encode(message))

    async def send(self, frame: bytes) -> None:
        await self._socket.send_multipart([self._client, frame])

    def close(self) -> None:
        self._socket.close(linger=1000)  # what it said last still leaves
        self._context.destroy(linger=1000)


@dataclass
class Run:
    """A connection that runs in a task, and what it told."""

    connection: Connection
    peer: Peer
    task: asyncio.Task[None]
    heard: asyncio.Queue[FromEngine]
    lost: list[str] = field(default_factory=list)

    async def ends(self) -> list[str]:
        async with asyncio.timeout(HANGS_S):
            await self.task
        return self.lost


@asynccontextmanager
async def running(
    path: str, *, silence_s: float | None = None, codec: Codec | None = None
) -> AsyncIterator[Run]:
    context: zmq.Context[Socket] = zmq.Context()
    heard: asyncio.Queue[FromEngine] = asyncio.Queue()
    lost: list[str] = []
    connection = Connection(
        context,
        path,
        codec=codec or Codec(),
        silence_s=silence_s,
        hear=heard.put_nowait,
        lose=lost.append,
    )
    peer = Peer(path)
    task = asyncio.create_task(connection.run())
    try:
        yield Run(connection, peer, task, heard, lost)
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
        assert run.connection.say(StatsQuery("1"))
        assert await run.peer.next() == StatsQuery("1")
        assert run.lost == []


async def test_nothing_can_be_sent_before_and_after_a_run(socket_path: str) -> None:
    async with running(socket_path) as run:
        assert not run.connection.say(StatsQuery("early"))  # the task has not begun
        assert isinstance(await run.peer.next(), Hello)
        assert run.connection.say(StatsQuery("1"))
        run.task.cancel()
        await asyncio.wait([run.task])
        assert run.lost == ["the engine died"]
        assert not run.connection.say(StatsQuery("late"))


async def test_a_peer_that_goes_has_been_heard_to_its_end(socket_path: str) -> None:
    async with running(socket_path) as run:
        await run.peer.next()
        for _ in range(200):
            await run.peer.say(WELCOME)
        run.peer.close()
        assert await run.ends() == ["the engine died"]
        assert run.heard.qsize() == 200


async def test_nonsense_ends_it(socket_path: str) -> None:
    async with running(socket_path) as run:
        await run.peer.next()
        await run.peer.send(b"\xc1 nonsense")
        assert await run.ends() == ["the engine died"]
        assert run.heard.empty()


async def test_silence_ends_it_and_greetings_answered_do_not(socket_path: str) -> None:
    async with running(socket_path, silence_s=1.0) as run:
        await run.peer.next()
        await run.peer.say(WELCOME)
        for _ in range(3):  # as many beats as would have ended it thrice
            assert isinstance(await run.peer.next(), Hello)
            await run.peer.say(WELCOME)
        assert run.lost == []
        assert await run.ends() == ["the engine does not answer"]


async def test_an_engine_may_be_silent_before_its_welcome(socket_path: str) -> None:
    """An engine that is still loading its weights has bound its socket already."""
    async with running(socket_path, silence_s=0.0) as run:
        await run.peer.next()
        done, _ = await asyncio.wait({run.task}, timeout=1.5)  # more than a beat
        assert not done
        await run.peer.say(WELCOME)
        assert await run.ends() == ["the engine does not answer"]


async def test_a_message_too_large_is_refused_here(socket_path: str) -> None:
    async with running(socket_path, codec=Codec(max_frame_bytes=64)) as run:
        await run.peer.next()
        with pytest.raises(EncodeError):
            run.connection.say(StatsQuery("x" * 100))
        assert run.connection.say(StatsQuery("1"))  # and it goes on
