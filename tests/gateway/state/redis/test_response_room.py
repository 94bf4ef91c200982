"""The room for stored responses in Redis: its limits always hold, at a bounded cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from gateway.state.records import ResponseRoom
from gateway.state.redis import keys as at
from gateway.state.redis.link import RedisLink, connect
from gateway.state.redis.store import RedisStore
from tests.doubles.gateway.redis_server import RedisServer
from tests.gateway.state.contract import a_response, a_tenant

SMALL = 600
MINE, OTHER = a_tenant("mine"), a_tenant("other")


class Site:
    """A gateway's state in Redis, and Redis's own statistics."""

    def __init__(self, server: RedisServer) -> None:
        self.client = connect(server.url)
        self.link = RedisLink(connect(server.url), timeout_s=10.0)
        self.store = RedisStore(self.link)

    async def held(self) -> tuple[int, int]:
        """Return the total bytes of responses, as Redis counts them and as they are stored."""
        counted = int(await self.client.get(at.RESPONSE_BYTES_OF_ALL) or 0)
        found = 0
        for tenant in (MINE, OTHER):
            found += sum(map(len, await self.client.hvals(at.responses_of(tenant.id))))
            own = await self.client.zscore(at.RESPONSE_BYTES, tenant.id)
            assert own is None or own <= counted
        return counted, found

    async def calls(self) -> int:
        """Return the number of commands from clients, without commands inside scripts."""
        stats = await self.client.info("commandstats")
        return sum(
            stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "zrange")
        )


@pytest.fixture
async def site(server: RedisServer) -> AsyncIterator[Site]:
    site = Site(server)
    await site.client.flushall()
    for tenant in (MINE, OTHER):
        await site.store.create(tenant)
    yield site
    await site.store.close()
    await site.client.aclose()


def size_of(text: str) -> int:
    return len(msgspec.json.encode(a_response(MINE, 1000, text)))


ROOM = ResponseRoom(
    of_one=SMALL * size_of(""), of_tenant=SMALL * size_of(""), of_all=SMALL * size_of("") * 2
)
LARGE = "a" * (ROOM.of_tenant - size_of("") * 5 // 2)


async def fill(site: Site) -> None:
    for number in range(SMALL):
        assert await site.store.keep_response(a_response(MINE, 1000 + number, ""), ROOM)
    assert await site.held() == (ROOM.of_tenant, ROOM.of_tenant)


async def test_who_gives_up_leaves_no_bytes_beyond_the_bounds(site: Site) -> None:
    await fill(site)
    for turns in range(0, 120, 3):
        response = a_response(MINE, 2000 + turns, LARGE)
        keeping = asyncio.create_task(site.store.keep_response(response, ROOM))
        await asyncio.sleep(turns / 2000)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        counted, found = await site.held()
        assert counted == found <= ROOM.of_tenant
    assert await site.store.keep_response(a_response(MINE, 9000, LARGE), ROOM), "the control"
    counted, found = await site.held()
    assert size_of(LARGE) <= counted == found <= ROOM.of_tenant


async def test_much_room_is_made_in_few_calls(site: Site) -> None:
    await fill(site)
    before = await site.calls()
    assert await site.store.keep_response(a_response(MINE, 9000, LARGE), ROOM)
    assert await site.calls() - before < 20
    assert await site.client.hlen(at.responses_of(MINE.id)) == 2


async def test_only_as_many_go_as_must(site: Site) -> None:
    """Remove no more responses than needed when several gateways store responses at once."""
    await fill(site)
    elsewhere = RedisStore(RedisLink(site.client, timeout_s=10.0))
    both = (site.store, elsewhere)
    responses = [a_response(MINE, 5000 + number, "") for number in range(40)]
    kept = [both[n % 2].keep_response(one, ROOM) for n, one in enumerate(responses)]
    assert all(await asyncio.gather(*kept))
    assert await site.held() == (ROOM.of_tenant, ROOM.of_tenant)
    assert await site.client.hlen(at.responses_of(MINE.id)) == SMALL


async def test_where_all_have_too_much_the_heaviest_makes_room_for_another(site: Site) -> None:
    await fill(site)
    room = ResponseRoom(of_one=ROOM.of_one, of_tenant=ROOM.of_tenant, of_all=ROOM.of_tenant)
    half = "b" * (ROOM.of_tenant // 2)
    assert await site.store.keep_response(a_response(OTHER, 1000, half), room)
    counted, found = await site.held()
    assert counted == found <= room.of_all
    assert counted > room.of_all - 2 * size_of("")
    assert await site.client.hlen(at.responses_of(OTHER.id)) == 1


async def test_the_ids_of_many_responses_are_read_a_few_at_a_time(site: Site) -> None:
    """While one command read all ids, Redis would serve nobody else."""
    await fill(site)
    ids = [a_response(MINE, 1000 + number, "").id for number in range(SMALL)]
    await site.client.config_resetstat()
    assert await site.store.response_ids(MINE.id, "", now=1.0) == ids
    assert await site.store.response_ids(MINE.id, ids[7], now=1.0) == [ids[7]]
    before = (await site.client.info("commandstats"))["cmdstat_zscore"]["calls"]
    assert await site.store.response_ids(MINE.id, "", now=None) == ids
    stats = await site.client.info("commandstats")
    assert stats["cmdstat_zscan"]["calls"] >= 4
    assert "cmdstat_zrange" not in stats
    assert before == stats["cmdstat_zscore"]["calls"] >= SMALL, "no expiry is read for a page"
