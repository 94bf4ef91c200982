"""Requests from the client to a real engine over a real socket each end once."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from engine.errors import (
    EngineUnavailable,
    InvalidRequest,
    NumericFailure,
    PromptTooLong,
)
from engine.link.event_messages import Failed, Finished, Reused, StepReply, Tokens
from engine.link.gateway_end import client as link_client
from engine.link.query_messages import Flush, StatsQuery
from tests.doubles.engine.engine_thread import EngineThread
from tests.doubles.engine.fake_runner import expected_output
from tests.engine.link.gateway_end.clients import (
    LONG,
    WAIT_S,
    at_rest,
    connected,
    in_one_message,
    running,
    until,
)
from tests.engine.rigs.rig import generate
from tests.engine.rigs.streams import collect, welcomed


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
                finished = told.get_nowait()  # the end arrived before the stream was closed
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
        """Report an end that arrived with the last token, though nobody reads it.

        The gateway stops at a stop string in the last of `max_tokens` tokens.
        """
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
