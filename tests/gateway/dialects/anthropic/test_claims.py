"""A turn of a stored thread is claimed and released, whenever the client disconnects."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest

from gateway.caller import Caller
from gateway.config import Bounds
from gateway.dialects.anthropic.schema import ContinuedThread
from gateway.dialects.anthropic.threads import Threads, ThreadTurn
from gateway.dialects.stored_records import StoredRecords
from gateway.requests.request_usage import Usage
from gateway.state.records import ResponseRoom, StoredResponse
from tests.gateway.state.contract import a_tenant
from tests.gateway.state.memory_store import MemoryStore

TENANT, PREVIOUS = a_tenant().id, "msg_1"


class Moments:
    """The awaited calls of a turn, in order. One of them waits until a test releases it."""

    def __init__(self, held_up: int) -> None:
        self._left = held_up
        self.is_held_up, self.may_go_on = asyncio.Event(), asyncio.Event()

    async def come(self) -> None:
        self._left -= 1
        if self._left == -1:
            self.is_held_up.set()
            await self.may_go_on.wait()


class SlowStore(MemoryStore):
    """A store that calls `Moments.come` after each write, where the turn may be cancelled."""

    moments: Moments

    async def keep_response(self, response: StoredResponse, room: ResponseRoom) -> bool:
        kept = await super().keep_response(response, room)
        await self.moments.come()
        return kept

    async def drop_response(self, tenant_id: str, response_id: str, *, now: float) -> None:
        await super().drop_response(tenant_id, response_id, now=now)
        await self.moments.come()


async def turn_in(store: SlowStore, moments: Moments) -> ThreadTurn:
    """Return a turn that continues the stored message `PREVIOUS`."""
    await store.create(a_tenant())
    threads = Threads(StoredRecords(store, Bounds(), lambda: 100.0))
    store.moments = Moments(-1)
    await threads.keep(TENANT, PREVIOUS, b"{}")
    store.moments = moments

    async def spell(*_: Any) -> bytes:
        await moments.come()
        return b"{}"

    rendering = Mock(heard=None, message_id="msg_2")
    thread = ContinuedThread(previous_message_id=PREVIOUS)
    return ThreadTurn(threads, thread, Caller(TENANT, "key"), Mock(spell=spell), rendering, b"{}")


@pytest.mark.parametrize(
    ("moment", "is_continued"),
    [
        pytest.param(0, False, id="claimed"),
        pytest.param(1, False, id="written as JSON"),
        pytest.param(2, True, id="stored"),
        pytest.param(3, True, id="the turn before removed"),
        pytest.param(4, True, id="the control: it stays"),
    ],
)
async def test_a_turn_is_continued_or_may_be_sent_again(moment: int, is_continued: bool) -> None:
    moments, store = Moments(moment), SlowStore()
    turn = await turn_in(store, moments)

    async def answered() -> None:
        async with turn.claimed():
            await turn.keep((), Usage(1, 0, 1))

    task = asyncio.create_task(answered())
    if moment < 4:
        await moments.is_held_up.wait()
        task.cancel()
        await asyncio.sleep(0)
        moments.may_go_on.set()
    await asyncio.wait([task])
    assert task.cancelled() is (moment < 4)
    held = {record_id for _, record_id in store.responses}
    assert held == ({f"after_{PREVIOUS}", "msg_2"} if is_continued else {PREVIOUS})
