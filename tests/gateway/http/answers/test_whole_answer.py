"""Unstreamed answers: their memory is counted, and large ones are sent in pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.types import Message

from gateway.config import Bounds
from gateway.http.answers.whole_answer import GatheredAnswers, answer_of, gathered_by, in_pieces
from gateway.http.request_head import RunningRequest


class Asker:
    """A tenant's request that holds memory until it is cut off, or until a test ends it."""

    def __init__(self, memory: GatheredAnswers, tenant_id: str, size: int) -> None:
        self.code = ""
        self.may_go = asyncio.Event()
        self.task = asyncio.create_task(self._hold(memory, tenant_id, size))

    async def _hold(self, memory: GatheredAnswers, tenant_id: str, size: int) -> None:
        self.running = RunningRequest(asyncio.current_task())
        self.running.tenant_id = tenant_id
        with self.running.at_end:
            self.held = gathered_by(self.running, memory)
            self.held.grow(size)
            try:
                await self.may_go.wait()
            except asyncio.CancelledError:
                self.code = self.running.error.code


async def asked(memory: GatheredAnswers, tenant_id: str, size: int) -> Asker:
    asker = Asker(memory, tenant_id, size)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return asker


async def test_one_that_is_too_large_ends() -> None:
    memory = GatheredAnswers(Bounds(max_answer_bytes=100))
    fits = await asked(memory, "a", 100)
    assert (fits.code, len(memory)) == ("", 100), "the control"
    late = await asked(memory, "a", 101)
    assert (late.code, len(memory)) == ("answer_too_large", 100)
    late.held.grow(5)
    assert len(memory) == 100, "what comes after the end is not held"
    fits.may_go.set()
    await fits.task
    assert len(memory) == 0


async def test_of_a_tenant_that_holds_too_much_the_longest_ends() -> None:
    memory = GatheredAnswers(Bounds(max_tenant_answer_bytes=100))
    askers = [await asked(memory, "a", size) for size in (20, 60)]
    other = await asked(memory, "b", 90)
    assert {one.code for one in (*askers, other)} == {""}, "the control"
    askers.append(await asked(memory, "a", 30))
    await asyncio.sleep(0)
    assert [one.code for one in (*askers, other)] == ["", "too_many_answer_bytes", "", ""]
    assert len(memory) == 20 + 30 + 90


async def test_of_all_the_longest_of_the_tenant_with_the_most_ends() -> None:
    memory = GatheredAnswers(Bounds(max_all_answer_bytes=200))
    hogs = [await asked(memory, "hog", size) for size in (50, 60, 50)]
    victim = await asked(memory, "a", 39)
    assert {one.code for one in (*hogs, victim)} == {""}, "the control"
    late = await asked(memory, "b", 5)
    await asyncio.sleep(0)
    assert [one.code for one in (*hogs, victim, late)] == ["", "overloaded", "", "", ""]
    assert hogs[1].running.error.status == 503


async def sent(pieces: list[bytes]) -> tuple[dict[str, str], bytes]:
    """Return an answer's header fields and body, joined from its pieces."""

    async def some() -> AsyncIterator[bytes]:
        for one in pieces:
            yield one

    messages: list[Message] = []

    async def send(message: Message) -> None:
        messages.append(message)

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    response = await answer_of(some(), {"x-own": "1"})
    await response({"type": "http"}, receive, send)
    begin, *bodies = messages
    head = {name.decode(): value.decode() for name, value in begin["headers"]}
    assert [one.get("more_body", False) for one in bodies] == [True] * (len(bodies) - 1) + [False]
    return head, b"".join(one["body"] for one in bodies)


@pytest.mark.parametrize("pieces", [[b"{}"], [b"{", b"}"], [b"[", b"1,", b"2", b"]"]])
async def test_a_large_one_is_sent_in_pieces_and_a_small_one_with_its_length(
    pieces: list[bytes],
) -> None:
    head, body = await sent(pieces)
    assert body == b"".join(pieces)
    assert (head["content-type"], head["x-own"]) == ("application/json", "1")
    assert head.get("content-length") == ("2" if len(pieces) == 1 else None)


@pytest.mark.parametrize("size", [1, 128 << 10, (128 << 10) + 1, 300_000])
async def test_pieces_are_the_whole(size: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    pieces = [piece async for piece in in_pieces(body[:size])]
    assert b"".join(pieces) == body[:size]
    assert max(map(len, pieces)) <= 128 << 10
