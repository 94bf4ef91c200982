"""The client against a real engine behind a real socket; only the model is a fake."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from engine.errors import (
    EngineDied,
    EngineError,
    EngineFailure,
    EngineUnavailable,
    InvalidRequest,
    NoRoomToPin,
    NumericFailure,
    PinTooLarge,
    PromptTooLong,
)
from engine.link.address import address
from engine.link.codec import Codec
from engine.link.gateway_end import client as link_client
from engine.link.gateway_end.client import EngineClient
from engine.link.gateway_end.flush_telling import ReadFlushes
from engine.link.heartbeat import Heartbeat
from engine.link.messages import (
    Event,
    Failed,
    Finished,
    FromEngine,
    Generate,
    Reused,
    StepReply,
    ToEngine,
    Tokens,
)
from engine.link.query_messages import Flush, Flushed, Pin, StatsQuery, Unpin
from engine.link.stats_messages import EngineStats
from tests.doubles.engine.engine_process import main
from tests.doubles.engine.engine_thread import EngineThread
from tests.doubles.engine.fake_engine import WELCOME
from tests.doubles.engine.fake_runner import expected_output
from tests.doubles.engine.forked import ForkedProcess, forked
from tests.engine.rigs.rig import NAMESPACE, generate
from tests.engine.rigs.streams import collect, welcomed

WAIT_S = 20.0
LONG = 3000  # tokens: more than any test waits for


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
    """Ask the engine until it reports what is waited for."""
    while not condition(stats := (await client.ask(StatsQuery())).stats):  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    return stats


def at_rest(stats: EngineStats) -> bool:
    return stats.running == stats.waiting == stats.pool.leased == 0


async def running(client: EngineClient, request: Generate) -> asyncio.Task[object]:
    """A request that has streamed its first token and goes on in a task."""
    stream = client.generate(request)
    first = await anext(stream)
    assert isinstance(first, Tokens)

    async def drain() -> None:
        async with aclosing(stream):
            async for _ in stream:
                pass

    task = asyncio.create_task(drain())
    await asyncio.sleep(0)  # a task that is cancelled before it began would not close the stream
    return task


async def ask_until_refused(client: EngineClient) -> None:
    for number in range(10_000):
        await collect(client, generate(f"late {number}", [2], max_tokens=1))


@asynccontextmanager
async def answering(path: str, answer: Callable[[ToEngine], FromEngine]) -> AsyncIterator[None]:
    """An engine that gives each message one answer."""
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
    """An engine that takes everything but a hello for a flush."""

    def flushed(asked: ToEngine) -> FromEngine:
        if isinstance(asked, Flush | Pin | Unpin):
            return Flushed(query_id=asked.query_id, blocks=7)
        return WELCOME

    async with answering(path, flushed):
        yield


@asynccontextmanager
async def in_one_message(path: str, *events: Event) -> AsyncIterator[None]:
    """An engine that answers every request with these events, all of them in one message."""

    def at_once(asked: ToEngine) -> FromEngine:
        return StepReply(list(events)) if isinstance(asked, Generate) else WELCOME

    async with answering(path, at_once):
        yield


async def _until_lost(client: EngineClient) -> None:
    while client.welcome is not None:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def _until_stalled(client: EngineClient, is_so: bool) -> None:
    async with asyncio.timeout(60):  # a bound on hanging, not a measurement
        while client.is_stalled is not is_so:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class TestStreams:
    async def test_a_request_streams_to_its_end(self, socket_path: str) -> None:
        with EngineThread(socket_path):
            async with connected(socket_path) as client:
                welcome = await welcomed(client)
                assert (welcome.vocab_size, welcome.block_size) == (64, 4)
                tokens, finished = await collect(client, generate("a", range(10), max_tokens=12))
        assert tokens == expected_output(range(10), 12)
        assert finished.completion_tokens == 12

    async def test_many_at_once_are_not_mixed_up(self, socket_path: str) -> None:
        requests = [generate(str(n), [n % 64, n // 2, 5], max_tokens=6) for n in range(60)]
        with EngineThread(socket_path, pace_s=0.0):
            async with connected(socket_path) as client:
                await welcomed(client)
                results = await asyncio.gather(*(collect(client, r) for r in requests))
                assert at_rest((await client.ask(StatsQuery())).stats)
        for n, (tokens, _) in enumerate(results):
            assert tokens == expected_output([n % 64, n // 2, 5], 6)

    async def test_a_refusal_is_a_typed_error(self, socket_path: str) -> None:
        with EngineThread(socket_path):
            async with connected(socket_path) as client:
                await welcomed(client)
                with pytest.raises(PromptTooLong):
                    await collect(client, generate("a", range(10), max_tokens=10_000))
                with pytest.raises(InvalidRequest):
                    await collect(client, generate("b", []))
                await collect(client, generate("c", range(10)))

    async def test_the_same_id_twice_at_once(self, socket_path: str) -> None:
        with EngineThread(socket_path):
            async with connected(socket_path) as client:
                await welcomed(client)
                first = await running(client, generate("a", range(9), max_tokens=50))
                with pytest.raises(InvalidRequest):
                    await collect(client, generate("a", range(9)))
                await first

    async def test_leaving_early_cancels(self, socket_path: str) -> None:
        with EngineThread(socket_path):
            async with connected(socket_path) as client:
                await welcomed(client)
                async with aclosing(client.generate(generate("a", [1], max_tokens=LONG))) as stream:
                    await anext(stream)
                stats = await until(client, at_rest)
                assert stats.generated_tokens < LONG
                task = await running(client, generate("b", [1], max_tokens=LONG))
                task.cancel()
                stats = await until(client, at_rest)
                assert stats.generated_tokens < LONG

    async def test_one_that_is_given_up_ends_here_at_once_and_is_cancelled_there(
        self, socket_path: str
    ) -> None:
        with EngineThread(socket_path):
            async with connected(socket_path) as client:
                await welcomed(client)
                ends: list[Finished | Failed] = []
                stream = client.generate(generate("a", [1, 2], max_tokens=LONG), ends.append)
                first = asyncio.ensure_future(anext(stream))
                await asyncio.sleep(0)
                assert client.give_up("a", "for a reason")
                assert not client.give_up("a", "again")
                with pytest.raises(EngineUnavailable, match="for a reason"):
                    await first
                while not ends:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
                assert [(end.request_id, type(end)) for end in ends] == [("a", Finished)]
                assert await collect(client, generate("b", [3], max_tokens=1))

    async def test_what_has_come_is_not_given_up(self, socket_path: str) -> None:
        with EngineThread(socket_path):
            async with connected(socket_path) as client:
                await welcomed(client)
                stream = client.generate(generate("a", [1], max_tokens=LONG))
                first = asyncio.ensure_future(anext(stream))
                await asyncio.sleep(0)
                client._receive(StepReply([Tokens(request_id="a", token_ids=(7,))]))
                assert not client.give_up("a", "too late")
                assert await first == Tokens(request_id="a", token_ids=(7,))
                await stream.aclose()

    async def test_the_end_of_a_request_is_told_once_also_after_its_caller_left(
        self, socket_path: str
    ) -> None:
        told: asyncio.Queue[Finished | Failed] = asyncio.Queue()
        with EngineThread(socket_path):
            async with connected(socket_path) as client:
                await welcomed(client)
                request = generate("a", [1, 2, 3], max_tokens=LONG)
                async with aclosing(client.generate(request, told.put_nowait)) as stream:
                    await anext(stream)
                finished = told.get_nowait()  # before the stream was closed
                assert isinstance(finished, Finished)
                assert (finished.request_id, finished.reason) == ("a", "cancelled")
                assert (finished.computed_tokens, finished.completion_tokens > 0) == (3, True)
                assert finished.engine_seconds > 0
                whole = generate("b", [1, 2, 3], max_tokens=2)
                ends = [event async for event in client.generate(whole, told.put_nowait)]
                assert told.get_nowait() == ends[-1]
        assert told.empty()

    async def test_closing_waits_for_the_end_of_an_engine_that_stands_still_within_a_bound(
        self, socket_path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(link_client, "LEAVE_S", 0.05)
        token = Tokens(request_id="a", token_ids=(7,), reused=Reused())
        end = Finished(request_id="a", reason="cancelled", prompt_tokens=1, completion_tokens=3)
        told: list[Finished | Failed] = []
        async with in_one_message(socket_path, token), connected(socket_path) as client:
            await welcomed(client)
            async with aclosing(client.generate(generate("a", [1]), told.append)) as stream:
                await anext(stream)
            assert not told
            assert not client.is_idle, "its end may come yet"
            client._receive(StepReply([end]))
            assert told == [end]
            assert client.is_idle

    async def test_closing_waits_no_longer_than_there_is_an_engine(self, socket_path: str) -> None:
        token = Tokens(request_id="a", token_ids=(7,), reused=Reused())
        async with connected(socket_path) as client:
            async with in_one_message(socket_path, token):
                await welcomed(client)
                stream = client.generate(generate("a", [1]))
                await anext(stream)
                closing = asyncio.ensure_future(stream.aclose())
                await asyncio.sleep(0.05)
                assert not closing.done(), "the control"
            async with asyncio.timeout(WAIT_S):
                await closing

    async def test_an_end_that_came_with_the_last_token_is_told_though_nobody_reads_it(
        self, socket_path: str
    ) -> None:
        """The gateway may stop at a stop string in the last token of `max_tokens`."""
        told: list[Finished | Failed] = []
        token = Tokens(request_id="a", token_ids=(7,), reused=Reused())
        end = Finished(request_id="a", reason="length", prompt_tokens=3, completion_tokens=1)
        async with in_one_message(socket_path, token, end), connected(socket_path) as client:
            await welcomed(client)
            async with aclosing(client.generate(generate("a", [1, 2, 3]), told.append)) as stream:
                assert await anext(stream) == token
            assert told == [end]
            async with aclosing(client.generate(generate("a", [1, 2, 3]), told.append)) as stream:
                assert [event async for event in stream] == [token, end]
            assert told == [end, end]

    async def test_a_failure_is_told_and_raised(self, socket_path: str) -> None:
        told: list[Finished | Failed] = []
        end = Failed(request_id="a", code=NumericFailure.code, message="not finite")
        async with in_one_message(socket_path, end), connected(socket_path) as client:
            await welcomed(client)
            with pytest.raises(NumericFailure):
                await anext(client.generate(generate("a", [1, 2, 3]), told.append))
            assert told == [end]
            with pytest.raises(NumericFailure):
                await collect(client, generate("a", [1, 2, 3]))

    async def test_flush_and_stats(self, socket_path: str) -> None:
        with EngineThread(socket_path):
            async with connected(socket_path) as client:
                await welcomed(client)
                await collect(client, generate("a", range(17), flow="x", max_tokens=1))
                assert (await client.ask(StatsQuery())).stats.flows["x"].blocks_held == 4
                assert (await client.ask(Flush(flow="y"))).blocks == 0
                assert (await client.ask(Flush(flow="x"))).blocks == 4
                assert (await client.ask(StatsQuery())).stats.pool.used == 0


def prefix(num_tokens: int, pin_id: str = "rules-1") -> Pin:
    """Tokens that requests of `generate` may begin with."""
    request = generate("", [token % 64 for token in range(num_tokens)])
    return Pin(
        pin_id=pin_id,
        token_ids=request.token_ids,
        namespace=NAMESPACE,
        block_keys=request.block_keys,
    )


class TestRecordedFlushes:
    async def test_an_engine_does_what_it_has_missed_once_and_before_it_is_used(
        self, socket_path: str
    ) -> None:
        recorded: asyncio.Queue[dict[str, str | None]] = asyncio.Queue()
        with EngineThread(socket_path):
            async with connected(socket_path) as before:
                await welcomed(before)
                await fill(before, "xyz")
                assert (await before.ask(Flush(flow="z", flush_id="fl_z"))).blocks == 4
                async with connected(socket_path, flushes=recorded.get) as client:
                    await asyncio.sleep(0.1)
                    assert client.welcome is None, "nobody has told what was flushed"
                    recorded.put_nowait({"fl_x": "x", "fl_z": "z"})
                    await welcomed(client)
                    assert await held(client) == {"x": 0, "y": 4, "z": 0}
                    await fill(client, "xz")
                    client.flush_recorded({"fl_x": "x", "fl_z": "z"})
                    assert await held(client) == {"x": 4, "y": 4, "z": 4}, "it has done them"
                    client.flush_recorded({"fl_x": "x", "fl_z": "z", "fl_y": "y"})
                    assert await held(client) == {"x": 4, "y": 0, "z": 4}
                    again = await client.ask(Flush(flow="x", flush_id="fl_x"))
                    assert again.blocks == 4, "as it was then"
                    assert await held(client) == {"x": 4, "y": 0, "z": 4}
                    client.flush_recorded({"fl_all": None})
                    assert await held(client) == {"x": 0, "y": 0, "z": 0}

    async def test_one_that_goes_meanwhile_is_not_used(self, socket_path: str) -> None:
        recorded: asyncio.Queue[dict[str, str | None]] = asyncio.Queue()
        async with connected(socket_path, flushes=recorded.get) as client:
            with EngineThread(socket_path):
                await asyncio.sleep(0.2)
            recorded.put_nowait({})
            await asyncio.sleep(0.1)
            assert client.welcome is None
            with EngineThread(socket_path):
                recorded.put_nowait({})
                await welcomed(client)


async def fill(client: EngineClient, flows: str) -> None:
    for flow in flows:
        prompt = [ord(flow) % 64, *range(16)]
        await collect(client, generate(f"of {flow}", prompt, flow=flow, max_tokens=1))


async def held(client: EngineClient) -> dict[str, int]:
    flows = (await client.ask(StatsQuery())).stats.flows
    return {flow: flows[flow].blocks_held for flow in "xyz"}


class TestPins:
    async def test_a_pinned_prefix_is_there_and_stays_until_it_is_let_go(
        self, socket_path: str
    ) -> None:
        with EngineThread(socket_path):
            async with connected(socket_path) as client:
                await welcomed(client)
                assert (await client.ask(prefix(16), None)).blocks == 4
                assert (await client.ask(prefix(16), None)).blocks == 4, "again is no harm"
                assert (await client.ask(StatsQuery())).stats.pins.pinned == {"rules-1": 4}
                await client.ask(Flush())
                _, finished = await collect(client, generate("a", range(20), max_tokens=1))
                assert finished.reused.tokens == 16
                assert (await client.ask(Unpin(pin_id="rules-1"))).blocks == 4
                assert (await client.ask(StatsQuery())).stats.pins.pinned == {}
                await client.ask(Flush())
                _, finished = await collect(client, generate("b", range(20), max_tokens=1))
                assert finished.reused.tokens == 0
                assert (await client.ask(Unpin(pin_id="rules-1"))).blocks == 0
                assert (await client.ask(Unpin(pin_id="never pinned"))).blocks == 0

    async def test_a_refusal_is_a_typed_error_and_pins_nothing(self, socket_path: str) -> None:
        with EngineThread(socket_path):
            async with connected(socket_path) as client:
                await welcomed(client)
                with pytest.raises(InvalidRequest, match="whole blocks"):
                    await client.ask(prefix(15), None)
                with pytest.raises(PinTooLarge):
                    await client.ask(prefix(4 * 1025), None)
                assert (await client.ask(prefix(4 * 600), None)).blocks == 600
                with pytest.raises(NoRoomToPin):
                    await client.ask(prefix(4 * 600, "rules-2"), None)
                assert (await client.ask(StatsQuery())).stats.pins.pinned == {"rules-1": 600}

    async def test_without_an_engine_nothing_is_pinned(self, socket_path: str) -> None:
        async with connected(socket_path) as client:
            with pytest.raises(EngineUnavailable):
                await client.ask(prefix(16), None)
            with pytest.raises(EngineUnavailable):
                await client.ask(Unpin(pin_id="rules-1"))

    async def test_pin_and_unpin_raise_when_the_engine_dies(self, socket_path: str) -> None:
        async with connected(socket_path) as client, engine_process(socket_path) as process:
            await welcomed(client)
            process.send_signal(signal.SIGSTOP)  # so that it is still to be done
            pinning = asyncio.create_task(client.ask(prefix(16), None))
            unpinning = asyncio.create_task(client.ask(Unpin(pin_id="rules-1")))
            await asyncio.sleep(0)
            process.send_signal(signal.SIGKILL)
            for asked in (pinning, unpinning):
                with pytest.raises(EngineUnavailable):
                    await asked

    async def test_an_answer_to_another_question_is_an_error(self, socket_path: str) -> None:
        async with beside_itself(socket_path), connected(socket_path) as client:
            await welcomed(client)
            with pytest.raises(EngineError, match="answered Pin with something else"):
                await client.ask(prefix(16), None)
            with pytest.raises(EngineError, match="answered Unpin with something else"):
                await client.ask(Unpin(pin_id="rules-1"))
            assert (await client.ask(Flush())).blocks == 7  # what it answers is heard


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
                # all of the garbage has been read once a later message was answered
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
            second, _ = await mad.recv_multipart()  # it says hello on a new connection
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
        async with asyncio.timeout(60):  # a bound on hanging, not a measurement
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
                async with asyncio.timeout(60):  # a bound on hanging, not a measurement
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
            async with asyncio.timeout(60):  # a bound on hanging, not a measurement
                with pytest.raises(EngineDied, match="does not answer"):
                    await hung
            with pytest.raises(EngineUnavailable):
                await collect(client, generate("in between", range(5)))
            process.send_signal(signal.SIGCONT)
            assert (await welcomed(client)).engine_id == welcome.engine_id
            # What it says of the request that was given up reaches nobody, and it forgets it.
            tokens, _ = await collect(client, generate("0", range(5), max_tokens=5))
            assert tokens == expected_output(range(5), 5)
            await until(client, at_rest)

    async def test_one_that_is_stopped_as_soon_as_it_is_there_is_stalled_until_it_goes_on(
        self, socket_path: str
    ) -> None:
        """The engine is stopped before it can have sent a heartbeat."""
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
            # Refused once the signal has been seen; until then requests are taken.
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
