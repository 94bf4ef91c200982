"""Requests fail with an error when their engine stalls, breaks or dies. The next engine is used."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from engine.errors import (
    EngineDied,
    EngineFailure,
    EngineUnavailable,
)
from engine.link.codec import Codec
from engine.link.event_messages import Finished
from engine.link.gateway_end.client import EngineClient
from engine.link.messages import FromEngine, ToEngine
from engine.link.query_messages import Flush, StatsQuery
from tests.doubles.engine.engine_thread import EngineThread
from tests.doubles.engine.fake_runner import expected_output
from tests.engine.link.gateway_end.clients import (
    LONG,
    ask_until_refused,
    at_rest,
    connected,
    engine_process,
    running,
    until,
)
from tests.engine.rigs.rig import generate
from tests.engine.rigs.streams import collect, welcomed


async def _until_lost(client: EngineClient) -> None:
    while client.welcome is not None:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def _until_stalled(client: EngineClient, is_so: bool) -> None:
    async with asyncio.timeout(60):  # seconds, reached only by a test that hangs
        while client.is_stalled is not is_so:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class TestConnection:
    async def test_without_an_engine_everything_is_unavailable(self, socket_path: str) -> None:
        async with connected(socket_path) as client:
            assert client.welcome is None
            with pytest.raises(EngineUnavailable) as refusal:
                await collect(client, generate("a", range(10)))
            assert refusal.value.retry_after_s
            with pytest.raises(EngineUnavailable):
                await client.ask(StatsQuery())
            with pytest.raises(EngineUnavailable):
                await client.ask(Flush())

    async def test_the_engine_may_come_later(self, socket_path: str) -> None:
        async with connected(socket_path) as client:
            with pytest.raises(EngineUnavailable):
                await collect(client, generate("a", range(10)))
            with EngineThread(socket_path):
                await welcomed(client)
                await collect(client, generate("a", range(10)))

    async def test_an_engine_that_stops_fails_what_runs(self, socket_path: str) -> None:
        async with connected(socket_path) as client:
            with EngineThread(socket_path) as engine:
                await welcomed(client)
                task = await running(client, generate("a", [1], max_tokens=LONG))
            with pytest.raises(EngineUnavailable):
                await task
            assert engine.exit_code == 0

    async def test_closing_fails_what_runs_and_leaves_no_task(self, socket_path: str) -> None:
        before = asyncio.all_tasks()
        with EngineThread(socket_path):
            client = EngineClient(socket_path)
            await client.start()
            await welcomed(client)
            task = await running(client, generate("a", [1], max_tokens=LONG))
            await client.close()
            with pytest.raises(EngineDied):
                await task
            assert client.welcome is None
            assert asyncio.all_tasks() == before
            await client.close()

    async def test_a_gateway_that_vanishes_leaves_nothing_behind(self, socket_path: str) -> None:
        with EngineThread(socket_path):
            async with connected(socket_path) as stays:
                await welcomed(stays)
                vanishes = EngineClient(socket_path)
                await vanishes.start()
                await welcomed(vanishes)
                tasks = [
                    await running(vanishes, generate(str(n), [n], max_tokens=LONG))
                    for n in range(3)
                ]
                mine = await running(stays, generate("0", [1], max_tokens=40))
                assert (await stays.ask(StatsQuery())).stats.running >= 3
                await vanishes.close()
                await asyncio.gather(*tasks, return_exceptions=True)
                await mine
                stats = await until(stays, at_rest)
                assert stats.generated_tokens < LONG

    async def test_garbage_from_a_stranger_disturbs_nobody(self, socket_path: str) -> None:
        context = zmq.asyncio.Context()
        with EngineThread(socket_path) as engine:
            async with connected(socket_path) as client:
                await welcomed(client)
                task = asyncio.create_task(collect(client, generate("a", range(5), max_tokens=50)))
                stranger = context.socket(zmq.DEALER)
                stranger.connect(f"ipc://{socket_path}")
                for number in range(50):
                    await stranger.send(os.urandom(number))
                    await stranger.send_multipart([b"x", b"y"])
                tokens, _ = await task
                assert tokens == expected_output(range(5), 50)
                # a later answer shows that all the garbage has been read
                await stranger.send(Codec().encode(generate("b", [])))
                await stranger.recv()
                stranger.close(linger=0)
        context.destroy(linger=0)
        assert engine.dropped_frames == 100

    async def test_nonsense_from_the_engine_ends_the_connection(self, socket_path: str) -> None:
        Path(socket_path).parent.mkdir()
        context = zmq.asyncio.Context()
        mad = context.socket(zmq.ROUTER)
        mad.bind(f"ipc://{socket_path}")
        async with connected(socket_path):
            first, _ = await mad.recv_multipart()
            await mad.send_multipart([first, b"\xc1 nonsense"])
            # the client says hello again on a new connection
            second, _ = await mad.recv_multipart()
            assert second != first
            mad.close(linger=0)
        context.destroy(linger=0)


class Broken(Codec):
    """A codec with a bug."""

    def encode(self, message: ToEngine | FromEngine) -> bytes:
        raise AssertionError("a bug")


async def test_a_client_that_breaks_says_so(
    socket_path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(socket_path, codec=Broken()):
        async with asyncio.timeout(60):  # seconds, reached only by a test that hangs
            while "a bug" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert "not connected to any more" in caplog.text


class TestDeath:
    async def test_a_killed_engine_fails_its_requests_and_the_next_one_serves(
        self, socket_path: str
    ) -> None:
        async with connected(socket_path) as client:
            async with engine_process(socket_path) as process:
                welcome = await welcomed(client)
                tasks = [
                    await running(client, generate(str(n), [n], max_tokens=LONG)) for n in range(3)
                ]
                process.send_signal(signal.SIGKILL)
                async with asyncio.timeout(60):  # seconds, reached only by a test that hangs
                    for task in tasks:
                        with pytest.raises(EngineDied):
                            await task
                assert client.welcome is None
                with pytest.raises(EngineUnavailable):
                    await collect(client, generate("in between", range(5)))
            async with engine_process(socket_path):
                successor = await welcomed(client)
                assert successor.engine_id != welcome.engine_id
                tokens, _ = await collect(client, generate("0", range(5), max_tokens=5))
                assert tokens == expected_output(range(5), 5)

    async def test_one_that_hangs_is_given_up_and_heard_again(self, socket_path: str) -> None:
        async with connected(socket_path, 1.0) as client, engine_process(socket_path) as process:
            welcome = await welcomed(client)
            hung = await running(client, generate("0", [1], max_tokens=LONG))
            process.send_signal(signal.SIGSTOP)
            async with asyncio.timeout(60):  # seconds, reached only by a test that hangs
                with pytest.raises(EngineDied, match="does not answer"):
                    await hung
            with pytest.raises(EngineUnavailable):
                await collect(client, generate("in between", range(5)))
            process.send_signal(signal.SIGCONT)
            assert (await welcomed(client)).engine_id == welcome.engine_id
            # The client drops the engine's events of the cancelled request, and the engine forgets
            # it.
            tokens, _ = await collect(client, generate("0", range(5), max_tokens=5))
            assert tokens == expected_output(range(5), 5)
            await until(client, at_rest)

    async def test_one_that_is_stopped_as_soon_as_it_is_there_is_stalled_until_it_goes_on(
        self, socket_path: str
    ) -> None:
        """Stop an engine's process before its first heartbeat, and let it go on later."""
        async with connected(socket_path) as client, engine_process(socket_path) as process:
            await welcomed(client)
            process.send_signal(signal.SIGSTOP)
            assert not client.is_stalled
            await _until_stalled(client, True)
            with pytest.raises(EngineUnavailable, match="does not answer"):
                await collect(client, generate("stopped", range(5)))
            process.send_signal(signal.SIGCONT)
            await _until_stalled(client, False)
            tokens, _ = await collect(client, generate("0", range(5), max_tokens=5))
            assert tokens == expected_output(range(5), 5)

    async def test_an_idle_engine_is_not_given_up(self, socket_path: str) -> None:
        async with connected(socket_path, 1.0) as client, engine_process(socket_path):
            await welcomed(client)
            lost = asyncio.create_task(_until_lost(client))
            done, _ = await asyncio.wait({lost}, timeout=3.0)
            lost.cancel()
            assert not done, "six heartbeats without a request, and it was given up"

    async def test_sigterm_lets_requests_finish_and_takes_no_new(self, socket_path: str) -> None:
        async with connected(socket_path) as client, engine_process(socket_path) as process:
            await welcomed(client)
            request = generate("a", range(5), max_tokens=300)
            stream = client.generate(request)
            await anext(stream)
            process.send_signal(signal.SIGTERM)
            # Refused once the stop has been seen; until then requests are accepted.
            with pytest.raises(EngineUnavailable):
                await ask_until_refused(client)
            rest = [event async for event in stream]
            assert isinstance(rest[-1], Finished)
            assert rest[-1].reason == "length"
            assert await process.wait() == 0
        assert not os.path.lexists(socket_path)

    async def test_grace_has_an_end(self, socket_path: str) -> None:
        async with (
            connected(socket_path) as client,
            engine_process(socket_path, "--grace", "0") as process,
        ):
            await welcomed(client)
            task = await running(client, generate("a", [1], max_tokens=LONG))
            process.send_signal(signal.SIGTERM)
            with pytest.raises(EngineUnavailable):
                await task
            assert await process.wait() == 0

    async def test_a_broken_device_ends_the_process_loudly(self, socket_path: str) -> None:
        async with (
            connected(socket_path) as client,
            engine_process(socket_path, "--break-at-step", "20") as process,
        ):
            await welcomed(client)
            task = await running(client, generate("a", [1], max_tokens=LONG))
            with pytest.raises(EngineFailure):
                await task
            assert await process.wait() == 1
