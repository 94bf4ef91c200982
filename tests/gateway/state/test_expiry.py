from __future__ import annotations

import asyncio

from gateway.errors import Unavailable
from gateway.state.expiry import dropped_when_expired
from tests.gateway.state.contract import a_response, a_tenant, kept, room_for
from tests.gateway.state.memory_store import MemoryStore


class Watched(MemoryStore):
    """A store that reports each call that drops expired records; at the first call it is
    unreachable.
    """

    def __init__(self) -> None:
        super().__init__()
        self.looks: list[float] = []
        self.looked = asyncio.Event()

    async def drop_expired_responses(self, *, now: float) -> None:
        self.looks.append(now)
        if len(self.looks) == 1:
            raise Unavailable("away")
        await super().drop_expired_responses(now=now)
        self.looked.set()


async def test_what_has_expired_is_dropped_also_after_an_outage() -> None:
    store = Watched()
    await store.create(a_tenant())
    for number in (1, 2):
        await store.keep_response(a_response(a_tenant(), number), room_for(2))
    async with dropped_when_expired(store, lambda: 101.5, every_s=0.0):
        await store.looked.wait()
    assert set(store.looks) == {101.5}
    assert await kept(store, a_tenant()) == [2]
