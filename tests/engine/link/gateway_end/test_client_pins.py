"""A real engine keeps the client's pins, and does the flushes that it missed before it is used."""

from __future__ import annotations

import asyncio
import signal

import pytest

from engine.errors import (
    EngineError,
    EngineUnavailable,
    InvalidRequest,
    NoRoomToPin,
    PinTooLarge,
)
from engine.link.gateway_end.client import EngineClient
from engine.link.query_messages import Flush, Pin, StatsQuery, Unpin
from tests.doubles.engine.engine_thread import EngineThread
from tests.engine.link.gateway_end.clients import (
    beside_itself,
    connected,
    engine_process,
)
from tests.engine.rigs.rig import NAMESPACE, generate
from tests.engine.rigs.streams import collect, welcomed


def prefix(num_tokens: int, pin_id: str = "rules-1") -> Pin:
    """Return a pin of the first tokens of requests from `generate`."""
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
            process.send_signal(signal.SIGSTOP)  # so that the pin is still pending
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
            assert (await client.ask(Flush())).blocks == 7  # a flush gets its own answer
