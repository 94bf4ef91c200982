"""Two gateways' keyrings on one real Redis: a key revoked by one is refused by the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from gateway.auth.keyring import IDENTITY_TTL_S, Keyring
from gateway.errors import Forbidden, Unauthenticated
from gateway.state.records import Tenant
from gateway.state.redis.link import RedisLink, connect
from gateway.state.redis.store import RedisStore, told_of_changes
from tests.doubles.gateway.redis_server import RedisServer
from tests.gateway.support.manual_clock import ManualClock
from tests.gateway.support.put_record import put

PEPPER = b"pepper".ljust(32, b".")
ACME = Tenant(id="tn_acme", name="acme", created_at=1.0)


class Told(Keyring):
    """A keyring that reports to the test when it has received a change."""

    heard: asyncio.Event

    def forget(self, changed_id: str) -> None:
        super().forget(changed_id)
        self.heard.set()

    def reload(self) -> None:
        super().reload()
        self.heard.set()


@dataclass
class Gateway:
    store: RedisStore
    link: RedisLink
    keyring: Told
    monotonic: ManualClock

    async def next_news(self) -> None:
        async with asyncio.timeout(60):
            await self.keyring.heard.wait()
        self.keyring.heard.clear()


@asynccontextmanager
async def a_gateway(server: RedisServer, *, hears: bool = True) -> AsyncIterator[Gateway]:
    link = RedisLink(connect(server.url), timeout_s=5.0)
    store, monotonic = RedisStore(link), ManualClock()
    keyring = Told(store, PEPPER, monotonic=monotonic)
    keyring.heard = asyncio.Event()
    gateway = Gateway(store, link, keyring, monotonic)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        if hears:
            await stack.enter_async_context(told_of_changes(link.client, keyring))
            await gateway.next_news()  # the gateway has subscribed to changes
        yield gateway


@pytest.fixture
async def here(server: RedisServer) -> AsyncIterator[Gateway]:
    async with a_gateway(server) as gateway:
        await gateway.link.command("FLUSHALL")
        await gateway.store.create(ACME)
        yield gateway


async def test_a_revocation_elsewhere_is_seen_without_waiting(
    server: RedisServer, here: Gateway
) -> None:
    async with a_gateway(server) as there:
        issued = await here.keyring.issue(ACME.id)
        await there.next_news()
        assert (await there.keyring.identify(issued.secret)).tenant_id == ACME.id
        await here.keyring.revoke(issued.record.id)
        await there.next_news()  # no clock was moved, so only the change itself revokes the key
        with pytest.raises(Unauthenticated):
            await there.keyring.identify(issued.secret)


async def test_without_the_news_it_is_seen_after_five_seconds(
    server: RedisServer, here: Gateway
) -> None:
    async with a_gateway(server, hears=False) as deaf:
        issued = await here.keyring.issue(ACME.id)
        await deaf.keyring.identify(issued.secret)
        await here.keyring.revoke(issued.record.id)
        # the key is still accepted, hence the limit on how long identities are cached
        await deaf.keyring.identify(issued.secret)
        deaf.monotonic.advance(IDENTITY_TTL_S)
        with pytest.raises(Unauthenticated):
            await deaf.keyring.identify(issued.secret)
    assert IDENTITY_TTL_S <= 5.0


async def test_who_was_cut_off_looks_everything_up_again(
    server: RedisServer, here: Gateway
) -> None:
    async with a_gateway(server) as there:
        issued = await here.keyring.issue(ACME.id)
        await there.next_news()
        await there.keyring.identify(issued.secret)
        cut = await here.link.command("CLIENT", "KILL", "TYPE", "pubsub")
        assert cut == 2
        await here.keyring.revoke(issued.record.id)  # no gateway receives this change
        await there.next_news()  # the gateway has subscribed again
        with pytest.raises(Unauthenticated):
            await there.keyring.identify(issued.secret)


async def test_other_changes_are_published_too(server: RedisServer, here: Gateway) -> None:
    async with a_gateway(server) as there:
        issued = await here.keyring.issue(ACME.id)
        await there.next_news()
        await there.keyring.identify(issued.secret)
        await put(here.store, replace(ACME, disabled=True))
        await there.next_news()
        with pytest.raises(Forbidden):
            await there.keyring.identify(issued.secret)
        await here.store.delete(Tenant, ACME.id)
        await there.next_news()
        with pytest.raises(Unauthenticated):
            await there.keyring.identify(issued.secret)
