"""Usage reports: one at a time for each tenant, and none for a client that has left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fastapi import Request, Response

from gateway.config import Bounds
from gateway.errors import TooManyRequests
from gateway.http.answers.whole_answer import GatheredAnswers, let_gather
from gateway.http.error_dialect import Dialects
from gateway.http.request_head import ClientGone, RequestHead, running_request, tell_owner
from gateway.startup.composition import DIALECTS
from gateway.usage.reports import MOST_WAITING, Reports


class Asker:
    """A client that asks for a report, and may leave. `error` is the error that its request got."""

    def __init__(
        self,
        reports: Reports,
        made: Callable[[], Awaitable[Response]],
        owner: str = "tn_a",
        memory: GatheredAnswers | None = None,
    ) -> None:
        self.gone = asyncio.Event()
        self.taken = asyncio.Event()
        self.sent = bytearray()
        self.head: dict[str, Any] = {}
        self.error: BaseException | None = None
        own_memory = GatheredAnswers(Bounds()) if memory is None else memory
        self._asks = (reports, made, owner, own_memory)
        scope = {"type": "http", "method": "GET", "path": "/v1/usage", "headers": []}
        head = RequestHead(self._app, Dialects(*DIALECTS))
        self.task = asyncio.create_task(head(scope, self._receive, self._send))

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        reports, made, owner, memory = self._asks
        let_gather(scope, memory)
        tell_owner(scope, owner)
        running_request(scope).tenant_id = owner
        try:
            answer = await reports.answer(Request(scope, receive), made)
            await answer(scope, receive, send)
        except (TooManyRequests, ClientGone) as error:
            self.error = error

    async def _receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.head = message
        else:
            await self.taken.wait()
            self.sent += message["body"]


class Maker:
    """A maker of reports of `size` bytes, which waits until a test lets it run."""

    def __init__(self, size: int = 10) -> None:
        self.made = 0
        self.may = asyncio.Event()
        self._size = size

    async def __call__(self) -> Response:
        await self.may.wait()
        self.made += 1
        return Response(bytes(self._size), media_type="text/csv", headers={"x-own": "1"})


async def turned() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_none_is_made_for_clients_that_have_gone() -> None:
    reports, maker = Reports(), Maker()
    askers = [Asker(reports, maker) for _ in range(5)]
    await turned()
    for asker in askers[:4]:
        asker.gone.set()
    await turned()
    assert [type(asker.error) for asker in askers[:4]] == [ClientGone] * 4
    maker.may.set()
    askers[4].taken.set()
    await askers[4].task
    assert (maker.made, len(askers[4].sent)) == (1, 10)


async def test_a_tenant_has_one_made_and_some_waiting_and_others_do_not_wait() -> None:
    reports, slow, quick = Reports(), Maker(), Maker()
    askers = [Asker(reports, slow) for _ in range(MOST_WAITING + 1)]
    await turned()
    refused = Asker(reports, slow)
    quick.may.set()
    other = Asker(reports, quick, owner="tn_b")
    for asker in (*askers, other):
        asker.taken.set()
    await asyncio.gather(refused.task, other.task)
    assert isinstance(refused.error, TooManyRequests)
    assert (len(other.sent), slow.made) == (10, 0)
    slow.may.set()
    await asyncio.gather(*(asker.task for asker in askers))
    assert slow.made == MOST_WAITING + 1


@pytest.mark.parametrize("size", [10, 300_000])
async def test_the_bytes_are_counted_until_they_are_sent(size: int) -> None:
    memory, maker = GatheredAnswers(Bounds()), Maker(size)
    maker.may.set()
    asker = Asker(Reports(), maker, memory=memory)
    await turned()
    assert len(memory) == size
    asker.taken.set()
    await asker.task
    assert (len(asker.sent), len(memory)) == (size, 0)
    headers = dict(asker.head["headers"])
    assert headers[b"content-type"] == b"text/csv; charset=utf-8"
    assert headers[b"x-own"] == b"1"


async def test_a_tenant_whose_answers_take_too_much_is_cut_off() -> None:
    memory = GatheredAnswers(Bounds(max_tenant_answer_bytes=25))
    small, large = Maker(10), Maker(12)
    small.may.set()
    large.may.set()
    fitting = [Asker(Reports(), small, memory=memory) for _ in range(2)]
    await turned()
    late = Asker(Reports(), large, memory=memory)
    other = Asker(Reports(), large, owner="tn_b", memory=memory)
    for asker in (late, other):
        asker.taken.set()
        await asker.task
    assert (late.head["status"], other.head["status"], len(memory)) == (429, 200, 20)
    for asker in fitting:
        asker.taken.set()
        await asker.task
        assert (asker.head["status"], len(asker.sent)) == (200, 10), "the control"
