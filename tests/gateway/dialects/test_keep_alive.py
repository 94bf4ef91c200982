"""Keep-alive messages fill pauses before a stream's first token. Clients pass over them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path

import anthropic
import httpx
import pytest

from engine.errors import EngineDied
from engine.link.messages import Generate
from gateway.dialects.keep_alive import with_pauses
from gateway.generation.choice import Delta, Event
from tests.doubles.engine.fake_engine import (
    FakeEngine,
    Pace,
    at_once,
    failing_at,
    hanging_at,
    saying,
)
from tests.doubles.gateway.served import MODEL, Served, config_of, serving
from tests.gateway.conftest import BOUNDS

PAUSE_S = 0.001


def deltas(*texts: str) -> list[Event]:
    return [Delta(0, text, (), None) for text in texts]


async def test_pauses_are_seen_until_the_first_event() -> None:
    go_on = asyncio.Event()
    events = deltas("a", "b", "c")

    async def slow() -> AsyncGenerator[Event, None]:
        await go_on.wait()
        for event in events:
            yield event
            await asyncio.sleep(3 * PAUSE_S)

    heard: list[Event | None] = []
    async for event in with_pauses(slow(), PAUSE_S):
        heard.append(event)
        if len(heard) == 3:
            go_on.set()
    assert heard[:3] == [None] * 3
    assert heard[-3:] == events
    assert set(heard[3:-3]) <= {None}, "later pauses are not seen"


async def test_who_leaves_during_a_pause_leaves_nothing_running() -> None:
    ended = []

    async def stuck() -> AsyncGenerator[Event, None]:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)
        yield deltas("a")[0]

    async with aclosing(with_pauses(stuck(), PAUSE_S)) as events:
        assert await anext(events) is None
    assert ended == [True]


async def test_an_error_comes_through() -> None:
    async def broken() -> AsyncGenerator[Event, None]:
        await asyncio.sleep(0)
        raise EngineDied("it died")
        yield

    with pytest.raises(EngineDied):
        await anext(with_pauses(broken(), 60))


@pytest.fixture(scope="module")
def served(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory, module_engine: FakeEngine
) -> Iterator[Served]:
    bounds = type(BOUNDS)(keep_alive_s=0.01)
    config = config_of(tiny_model, tmp_path_factory.mktemp("data"), bounds=bounds)
    with serving(config, module_engine) as gateway:
        yield gateway


def late(then: Pace) -> Pace:
    """Send nothing for a few pauses, then the tokens of `then`."""

    async def pace(request: Generate, at: int) -> None:
        if at == 0:
            await asyncio.sleep(0.1)
        await then(request, at)

    return pace


BODY = {
    "model": MODEL,
    "max_tokens": 9,
    "stream": True,
    "messages": [{"role": "user", "content": "hi"}],
}


def test_a_long_prompt_has_pings(served: Served, engine: FakeEngine) -> None:
    engine.script, engine.pace = saying("ab"), late(at_once)
    headers = {"x-api-key": served.key}
    answer = httpx.post(f"{served.url}/v1/messages", json=BODY, headers=headers, timeout=60)
    names = [line.removeprefix("event: ") for line in answer.text.split("\n") if "event: " in line]
    start = names.index("message_start")
    assert start > 0
    assert set(names[:start]) == {"ping"}
    assert names[start:] == [
        "message_start",
        "ping",
        "content_block_start",
        *["content_block_delta"] * 2,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert answer.headers["request-id"]
    chat = httpx.post(f"{served.url}/v1/chat/completions", json=BODY, headers=headers, timeout=60)
    assert chat.text.startswith("data: {"), "other dialects have none"


def test_the_official_client_passes_over_them(served: Served, engine: FakeEngine) -> None:
    engine.script, engine.pace = saying("ab"), late(at_once)
    with (
        anthropic.Anthropic(base_url=served.url, api_key=served.key, max_retries=0) as client,
        client.messages.stream(
            model=MODEL, max_tokens=9, messages=[{"role": "user", "content": "hi"}]
        ) as stream,
    ):
        assert stream.get_final_text() == "ab"


def test_what_fails_after_a_ping_is_an_event(served: Served, engine: FakeEngine) -> None:
    engine.pace = late(failing_at(0, EngineDied("it died")))
    headers = {"x-api-key": served.key}
    answer = httpx.post(f"{served.url}/v1/messages", json=BODY, headers=headers, timeout=60)
    assert answer.status_code == 200
    assert answer.text.startswith("event: ping\n")
    assert "event: message_start" not in answer.text
    last = answer.text.strip().rpartition("\n\n")[2]
    assert last.startswith("event: error\n")
    assert "overloaded_error" in last


def test_a_client_that_leaves_before_the_first_token(served: Served, engine: FakeEngine) -> None:
    engine.pace = late(hanging_at(0))
    headers = {"x-api-key": served.key}
    with httpx.stream(
        "POST", f"{served.url}/v1/messages", json=BODY, headers=headers, timeout=60
    ) as answer:
        assert next(answer.iter_lines()) == "event: ping"
    assert engine.wait_until(lambda engine: engine.running == 0)
