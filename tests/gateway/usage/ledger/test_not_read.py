"""Streams that their clients hardly read: the engine stops in time, and the end is a typed
error.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from uvicorn.server import ServerState

from gateway.config import Bounds
from gateway.http.protocol.connection import BoundedConnection
from tests.doubles.engine.fake_engine import saying
from tests.doubles.replicas.fake_replica import FakeReplica
from tests.doubles.waiting import until
from tests.gateway.usage.ledger.asking import Asking
from tests.gateway.usage.ledger.client import Answer, Pace, PacedWire, ask
from tests.gateway.usage.ledger.house import BOUNDS, House, house

SLOW = Pace(at_once=50, one_in=20)
TURNS = [{"role": "user", "content": "hi"}]
LONG: dict[str, Asking] = {
    "chat": Asking("/v1/chat/completions", {"messages": TURNS, "max_tokens": 900}),
    "completion": Asking("/v1/completions", {"prompt": "hi", "max_tokens": 900}),
    "response": Asking("/v1/responses", {"input": "hi", "max_output_tokens": 900}),
    "message": Asking("/v1/messages", {"messages": TURNS, "max_tokens": 900}),
}


@asynccontextmanager
async def serving(
    model: Path, data_dir: Path, text: str, bounds: Bounds = BOUNDS
) -> AsyncIterator[tuple[House, FakeReplica, str]]:
    """Run a gateway with one engine that answers `text` at once; yield both and a key."""
    engine = FakeReplica("a")
    engine.script = saying(text)
    async with house(model, data_dir, engine, bounds) as gateway:
        yield gateway, engine, (await gateway.tenant("acme"))[1]


def stream(asking: Asking, key: str) -> bytes:
    return replace(asking, body={**asking.body, "stream": True}).encoded(key)


def last_event(answer: Answer) -> dict[str, Any]:
    lines = [line for line in bytes(answer.body).split(b"\n") if line.startswith(b"data:")]
    [*_, last] = [line for line in lines if not line.endswith(b"[DONE]")]
    event: dict[str, Any] = json.loads(last[5:])
    return event


def error_in(event: dict[str, Any]) -> dict[str, Any]:
    error: dict[str, Any] = (event.get("response") or event)["error"]
    return error


@pytest.mark.parametrize("name", LONG)
async def test_one_that_is_cut_off_says_so_in_its_dialect(
    tiny_model: Path, tmp_path: Path, name: str
) -> None:
    async with serving(tiny_model, tmp_path, "x" * 900) as (gateway, engine, key):
        answer = await ask(gateway, stream(LONG[name], key), SLOW, Random(0))
        event = last_event(answer)
        assert (answer.status, answer.is_whole) == (200, True)
        assert error_in(event)["code"] == "answer_not_read"
        of_event = {"response": "response.failed", "message": "error"}
        wanted = of_event[name] if name in of_event else error_in(event)["type"]
        assert event["type"] == wanted
        assert (engine.running, engine.cancelled + engine.finished) == (0, 1)
        assert len(gateway.kind.backlogs) == 0


@pytest.mark.parametrize("name", LONG)
async def test_one_that_is_read_slowly_is_whole_within_the_bounds(
    tiny_model: Path, tmp_path: Path, name: str
) -> None:
    async with serving(tiny_model, tmp_path, "x" * 900, Bounds()) as (gateway, engine, key):
        answer = await ask(gateway, stream(LONG[name], key), SLOW, Random(0))
        assert (answer.status, answer.is_whole, engine.finished) == (200, True, 1)
        assert not (last_event(answer).get("response") or last_event(answer)).get("error")


@pytest.mark.parametrize(("most", "status"), [(4000, 200), (2000, 400)])
@pytest.mark.parametrize("name", LONG)
async def test_one_too_large_to_be_sent_whole_is_refused_in_its_dialect_and_charged(
    tiny_model: Path, tmp_path: Path, name: str, most: int, status: int
) -> None:
    bounds = Bounds(max_answer_bytes=2 * most)
    async with serving(tiny_model, tmp_path, "x" * 900, bounds) as (gateway, engine, key):
        whole = replace(LONG[name], body={**LONG[name].body, "stream": False})
        answer = await ask(gateway, whole.encoded(key), Pace(), Random(0))
        body = json.loads(answer.body)
        assert (answer.status, answer.is_whole) == (status, True)
        [did] = engine.computed.values()
        assert did.generated >= (900 if status == 200 else 400)
        assert gateway.books.charged(did.flow)[0] == did.prompt + did.generated
        assert (engine.running, len(gateway.kind.gathered)) == (0, 0)
        if status == 400:
            message = {"type": "invalid_request_error", **error_in(body)}
            assert "stream it" in message["message"]
            assert message.get("code", "answer_too_large") == "answer_too_large"


class HeldUp(BoundedConnection):
    """A connection whose streams wait for the client, since it has no backlog."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        del self.scope["ratoon.reader"]  # type: ignore[typeddict-item]


def with_backlog(gateway: House) -> type[BoundedConnection]:
    return gateway.kind


def without(gateway: House) -> type[BoundedConnection]:
    return type("Connection", (HeldUp, gateway.kind), {})


@pytest.mark.parametrize("kind", [with_backlog, without])
async def test_a_stop_string_is_found_though_nobody_reads(
    tiny_model: Path, tmp_path: Path, kind: Callable[[House], type[BoundedConnection]]
) -> None:
    async with serving(tiny_model, tmp_path, "x" * 20 + "STOP" + "y" * 800) as served:
        gateway, engine, key = served
        slow = replace(gateway, kind=kind(gateway))
        body = {"prompt": "hi", "max_tokens": 900, "stop": ["STOP"]}
        request = stream(Asking("/v1/completions", body), key)
        await ask(slow, request, Pace(reads_at_most=0, leaves_after=2000), Random(0))
        [did] = engine.computed.values()
        is_in_time = did.generated < 800  # usually 25 tokens; without a stop all 825
        assert is_in_time is (kind is with_backlog)


async def test_an_answer_before_it_that_is_not_read_holds_up_no_engine(
    tiny_model: Path, tmp_path: Path
) -> None:
    async with serving(tiny_model, tmp_path, "x" * 20) as (gateway, engine, key):
        whole = Asking("/v1/completions", {"prompt": "h" * 900, "echo": True, "stream": False})
        wire, state = PacedWire(), ServerState()
        connection = wire.connection = gateway.kind(gateway.app, state, {})
        connection.connection_made(wire)
        connection.data_received(whole.encoded(key))
        await until(lambda: not state.tasks, 20)
        assert connection.flow.write_paused, "the first answer is not read"
        body = {"prompt": "hi", "max_tokens": 9}
        connection.data_received(stream(Asking("/v1/completions", body), key))
        await until(lambda: engine.finished == 2, 20)
        read = bytearray()

        def has_all() -> bool:
            read.extend(wire.read(1 << 20))
            return b"[DONE]" in read

        await until(has_all, 20)
        assert read.count(b"HTTP/1.1 200 OK\r\n") == 2
        wire.lose()
