"""Clients of engines that listen on a real socket; only the model is a double."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path

import zmq
import zmq.asyncio

from engine.link.address import address
from engine.link.codec import Codec
from engine.link.event_messages import Event, StepReply, Tokens
from engine.link.gateway_end.client import EngineClient
from engine.link.gateway_end.flush_telling import ReadFlushes
from engine.link.heartbeat import Heartbeat
from engine.link.messages import FromEngine, Generate, ToEngine
from engine.link.query_messages import Flush, Flushed, Pin, StatsQuery, Unpin
from engine.link.stats.engine_stats import EngineStats
from tests.doubles.engine.engine_process import main
from tests.doubles.engine.fake_engine import WELCOME
from tests.doubles.engine.forked import ForkedProcess, forked
from tests.engine.rigs.rig import generate
from tests.engine.rigs.streams import collect

WAIT_S = 20.0
LONG = 3000  # tokens, more than any test waits for


@asynccontextmanager
async def connected(
    path: str,
    silence_s: float | None = None,
    codec: Codec | None = None,
    flushes: ReadFlushes | None = None,
) -> AsyncIterator[EngineClient]:
    client = EngineClient(path, silence_s=silence_s, codec=codec, flushes=flushes)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


def engine_process(path: str, *arguments: str) -> AbstractAsyncContextManager[ForkedProcess]:
    return forked(main, [path, *arguments])


async def until(client: EngineClient, condition: Callable[[EngineStats], bool]) -> EngineStats:
    """Ask the engine for its statistics until `condition` holds."""
    while not condition(stats := (await client.ask(StatsQuery())).stats):  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    return stats


def at_rest(stats: EngineStats) -> bool:
    return stats.running == stats.waiting == stats.pool.leased == 0


async def running(client: EngineClient, request: Generate) -> asyncio.Task[object]:
    """Run a request in a task; return the task after its first token."""
    stream = client.generate(request)
    first = await anext(stream)
    assert isinstance(first, Tokens)

    async def drain() -> None:
        async with aclosing(stream):
            async for _ in stream:
                pass

    task = asyncio.create_task(drain())
    # a task that is cancelled before it first runs would not close the stream
    await asyncio.sleep(0)
    return task


async def ask_until_refused(client: EngineClient) -> None:
    for number in range(10_000):
        await collect(client, generate(f"late {number}", [2], max_tokens=1))


@asynccontextmanager
async def answering(path: str, answer: Callable[[ToEngine], FromEngine]) -> AsyncIterator[None]:
    """Run an engine that sends one answer to each message."""
    Path(path).parent.mkdir()
    context = zmq.asyncio.Context()
    engine = context.socket(zmq.ROUTER)
    engine.bind(f"ipc://{path}")
    turns = itertools.count()
    shadow: zmq.Context[zmq.Socket[bytes]] = zmq.Context.shadow(context.underlying)
    publisher = shadow.socket(zmq.PUB)
    publisher.bind(address(path).heartbeat)
    heartbeat = Heartbeat(publisher, lambda: next(turns))
    codec = Codec()

    async def answer_all() -> None:
        while True:
            client, frame = await engine.recv_multipart()
            reply = answer(codec.decode_to_engine(frame))
            await engine.send_multipart([client, codec.encode(reply)])

    answers = asyncio.create_task(answer_all())
    try:
        yield
    finally:
        answers.cancel()
        await asyncio.wait([answers])
        heartbeat.close()
        engine.close(linger=0)
        context.destroy(linger=0)


@asynccontextmanager
async def beside_itself(path: str) -> AsyncIterator[None]:
    """Run an engine that wrongly answers pins as flushes."""

    def flushed(asked: ToEngine) -> FromEngine:
        if isinstance(asked, Flush | Pin | Unpin):
            return Flushed(query_id=asked.query_id, blocks=7)
        return WELCOME

    async with answering(path, flushed):
        yield


@asynccontextmanager
async def in_one_message(path: str, *events: Event) -> AsyncIterator[None]:
    """Run an engine that answers every request with these events in one message."""

    def at_once(asked: ToEngine) -> FromEngine:
        return StepReply(list(events)) if isinstance(asked, Generate) else WELCOME

    async with answering(path, at_once):
        yield
