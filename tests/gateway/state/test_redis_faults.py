"""A Redis that is down, frozen, slow, flushed, restarted empty, read-only or full.

Nothing hangs, no unknown key is accepted, and everything works as before once Redis is back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.auth.keyring import IDENTITY_TTL_S, OUTAGE_TTL_S, IssuedKey, Keyring
from gateway.errors import (
    Conflict,
    GatewayError,
    StateDiskFull,
    StateLost,
    Unauthenticated,
    Unavailable,
)
from gateway.state.records import ApiKey, AuditEntry, Group, PublishedPrefix, Tenant
from gateway.state.redis import keys as at
from gateway.state.redis.keys import STATE_ID
from gateway.state.redis.link import Breaker, RedisLink, connect
from gateway.state.redis.store import RedisStore
from gateway.state.usage_records import Counters, UsageRow
from tests.doubles.disk.damage import fill_up, small_disk
from tests.doubles.gateway.redis_server import RedisServer, redis_server
from tests.gateway.state.contract import a_group, a_prefix, a_row
from tests.gateway.support.manual_clock import ManualClock
from tests.gateway.support.put_record import put

PEPPER = b"pepper".ljust(32, b".")
ACME = Tenant(id="tn_acme", name="acme", created_at=1.0)
DAMAGED = [b"{", b'{"id": 3}', b"\xff", b'{"other": ' + b"[" * 200_000]
ENTRY = AuditEntry(time=1.0, actor="op", action="a", target="t")


@dataclass
class Site:
    """A gateway's state with a short timeout, and two keys, one of which the gateway has
    looked up.
    """

    server: RedisServer
    link: RedisLink
    store: RedisStore
    keyring: Keyring
    monotonic: ManualClock  # clock of the keyring
    breaker_clock: ManualClock
    known: IssuedKey
    unused: IssuedKey

    def forget_by_time(self) -> None:
        self.monotonic.advance(IDENTITY_TTL_S)

    async def recover(self) -> None:
        """Let the circuit breaker probe until Redis answers."""
        async with asyncio.timeout(20):
            while True:
                self.breaker_clock.advance(1.0)
                try:
                    await self.store.every(Tenant)
                except Unavailable:
                    await asyncio.sleep(0.01)
                else:
                    return

    async def lost(self) -> None:
        """Let the circuit breaker probe until Redis answers with another state."""
        async with asyncio.timeout(20):
            while self.store.link.fault is None:
                self.breaker_clock.advance(1.0)
                await self.store.link.check()
                await asyncio.sleep(0.01)

    async def refused(self) -> None:
        """Check that every method raises Unavailable with a delay before a retry."""
        for attempt in (
            self.store.create(ACME),
            self.store.every(Tenant),
            put(self.store, ACME),
            self.store.delete(Tenant, ACME.id),
            self.store.create(self.known.record),
            self.store.get(ApiKey, "key_1"),
            self.store.list_keys(ACME.id),
            put(self.store, self.known.record),
            self.store.find_by_digest(b"digest"),
            self.store.create(a_group()),
            self.store.every(Group),
            self.store.create(a_prefix()),
            self.store.every(PublishedPrefix),
            self.store.add_usage([a_row(requests=1)], batch="1"),
            self.store.usage("2026-01-01", "2026-12-31"),
            self.store.usage("2026-01-01", "2026-12-31", tenant_id=ACME.id),
            self.store.append_audit(ENTRY),
            self.store.list_audit(limit=1),
        ):
            with pytest.raises(Unavailable) as refusal:
                await attempt
            assert refusal.value.status == 503
            assert (refusal.value.retry_after_s or 0) > 0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


@asynccontextmanager
async def a_site(server: RedisServer, *, timeout_s: float = 0.2) -> AsyncIterator[Site]:
    monotonic, breaker_clock = ManualClock(), ManualClock()
    link = RedisLink(connect(server.url), Breaker(breaker_clock), timeout_s=timeout_s)
    store = RedisStore(link)
    keyring = Keyring(store, PEPPER, monotonic=monotonic)
    await store.create(ACME)
    known, unused = await keyring.issue(ACME.id), await keyring.issue(ACME.id)
    await keyring.identify(known.secret)
    yield Site(server, link, store, keyring, monotonic, breaker_clock, known, unused)
    await store.close()


@pytest.fixture
async def site(server: RedisServer) -> AsyncIterator[Site]:
    async with a_site(server) as site:
        yield site


@asynccontextmanager
async def held_up(seconds: float) -> AsyncIterator[None]:
    """Make every iteration of the event loop take the given time."""

    async def work() -> None:
        while True:
            time.sleep(seconds)  # noqa: ASYNC251 (that is what holds a loop up)
            await asyncio.sleep(0)

    working = asyncio.create_task(work())
    try:
        yield
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def refusal(site: Site, issued: IssuedKey) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        await site.keyring.identify(issued.secret)
    return caught.value


async def outage(site: Site) -> None:
    """Check the gateway's behaviour while Redis does not answer, for any reason."""
    site.forget_by_time()
    assert (await site.keyring.identify(site.known.secret)).tenant_id == ACME.id
    # status 503, since the key may be valid
    assert isinstance(await refusal(site, site.unused), Unavailable)
    await site.refused()
    site.monotonic.advance(OUTAGE_TTL_S)
    assert isinstance(await refusal(site, site.known), Unavailable)


async def test_redis_killed_and_started_again_empty(site: Site) -> None:
    site.server.kill()
    await outage(site)
    site.server.start()  # the restarted Redis is empty
    await site.lost()
    # the state is lost, so all keys are refused
    assert isinstance(await refusal(site, site.known), StateLost)
    assert site.store.link.fault is not None
    assert site.store.link.fault.status == "state_missing"
    assert await site.link.command("DBSIZE") == 0  # the gateway wrote nothing
    # begins a new state, as --new-state does
    begun = RedisStore(RedisLink(connect(site.server.url), timeout_s=5.0))
    await begun.create(ACME)
    await begun.close()
    # to the running gateway, the new state is not the one that it lost
    assert isinstance(await refusal(site, site.known), StateLost)


async def test_redis_frozen_and_thawed(site: Site) -> None:
    site.server.freeze()
    await outage(site)
    site.server.thaw()
    await site.recover()
    assert (await site.keyring.identify(site.known.secret)).tenant_id == ACME.id
    assert (await site.keyring.identify(site.unused.secret)).tenant_id == ACME.id


async def test_a_frozen_redis_is_waited_for_five_times_and_then_not_at_all(site: Site) -> None:
    site.server.freeze()
    asked = 0

    async def work() -> None:
        nonlocal asked
        asked += 1
        await site.link.client.ping()

    for _ in range(50):
        with pytest.raises(Unavailable):
            await site.link.run(work)
    assert asked == 5
    site.breaker_clock.advance(1.0)
    for _ in range(50):
        with pytest.raises(Unavailable):
            await site.link.run(work)
    assert asked == 6  # only one probe was sent
    site.server.thaw()
    site.breaker_clock.advance(1.0)
    await site.link.run(work)
    await site.link.run(work)
    assert asked == 8


async def test_a_redis_that_is_too_slow_is_as_good_as_away(server: RedisServer) -> None:
    async with a_site(server, timeout_s=0.05) as site:
        admin = connect(server.url, timeout_s=10)
        await admin.execute_command("CLIENT", "PAUSE", 600_000, "ALL")  # type: ignore[no-untyped-call]
        await outage(site)
        assert isinstance(await refusal(site, site.known), Unavailable)
        server.kill()
        await admin.aclose()


async def test_a_crowd_that_asks_at_once_is_answered(server: RedisServer) -> None:
    link = RedisLink(connect(server.url), timeout_s=0.05)
    async with held_up(0.02):
        answers = await asyncio.gather(*(link.command("ECHO", str(n)) for n in range(200)))
    assert answers == [str(number).encode() for number in range(200)]
    await link.close()


async def test_a_late_answer_never_reaches_the_next_command(site: Site) -> None:
    """Drop a connection that was given up, so that its late answer never reaches the next
    command.
    """
    site.server.freeze()
    with pytest.raises(Unavailable):
        await site.link.command("ECHO", "late")
    site.server.thaw()
    for number in range(20):
        assert await site.link.command("ECHO", str(number)) == str(number).encode()


async def test_a_flush_closes_everything(site: Site) -> None:
    await site.link.command("FLUSHALL")
    await site.link.command("SCRIPT", "FLUSH")
    site.forget_by_time()
    for issued in (site.known, site.unused):
        assert isinstance(await refusal(site, issued), StateLost)
    await site.refused()
    assert await site.link.command("DBSIZE") == 0  # the gateway wrote nothing
    site.server.kill()  # keys that were known before the flush are still refused
    site.forget_by_time()
    assert isinstance(await refusal(site, site.known), Unavailable)


async def test_after_a_flush_the_right_state_is_taken_again(site: Site) -> None:
    saved = {
        key: await site.link.command("DUMP", key) for key in await site.link.command("KEYS", "*")
    }
    await site.link.command("FLUSHALL")
    await site.store.link.check()
    assert site.store.link.fault is not None
    await site.link.command("SET", STATE_ID, "f" * 32)  # the id of another installation
    assert isinstance(await refusal(site, site.unused), StateLost)
    await site.link.command("FLUSHALL")
    for key, value in saved.items():
        await site.link.command("RESTORE", key, 0, value)
    await site.store.link.check()
    assert site.store.link.fault is None
    assert (await site.keyring.identify(site.unused.secret)).tenant_id == ACME.id


async def test_lost_scripts_are_loaded_again(site: Site) -> None:
    await site.link.command("SCRIPT", "FLUSH")
    site.forget_by_time()
    assert (await site.keyring.identify(site.known.secret)).tenant_id == ACME.id
    await site.link.command("SCRIPT", "FLUSH")
    await site.store.create(a_group())


@pytest.mark.parametrize("damaged", DAMAGED)
async def test_a_record_that_no_gateway_wrote_is_a_typed_error(site: Site, damaged: bytes) -> None:
    whole = await site.link.command("HGET", at.TENANTS, ACME.id)
    await site.link.command("HSET", at.TENANTS, ACME.id, damaged)
    error = await refusal(site, site.unused)
    assert (error.status, error.code) == (503, "state_damaged")
    with pytest.raises(StateLost):
        await site.store.every(Tenant)
    await site.link.command("HSET", at.TENANTS, ACME.id, whole)
    assert (await site.keyring.identify(site.unused.secret)).tenant_id == ACME.id


@pytest.mark.parametrize("damaged", DAMAGED)
async def test_usage_that_no_gateway_wrote_is_a_typed_error(site: Site, damaged: bytes) -> None:
    day = "2026-01-31"
    rows = [UsageRow(day=day, tenant_id=ACME.id, key_id="key", counters=Counters(requests=2))]
    await site.store.add_usage(rows, batch="one")
    assert await site.store.usage(day, day) == rows
    await site.link.command("HSET", at.usage_of(day, ACME.id), "key:requests", damaged)
    for tenant_id in (ACME.id, None):
        with pytest.raises(StateLost) as refused:
            await site.store.usage(day, day, tenant_id=tenant_id)
        assert refused.value.code == "state_damaged"


async def test_a_read_only_redis_still_says_who_may_come_in(
    site: Site, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with redis_server(tmp_path_factory.mktemp("primary")) as primary:
        # Redis is read-only as soon as it has a primary; this primary is frozen, so no data is ever
        # copied.
        primary.freeze()
        await site.link.command("REPLICAOF", "127.0.0.1", primary.port)
        site.forget_by_time()
        assert (await site.keyring.identify(site.unused.secret)).tenant_id == ACME.id
        for _ in range(10):  # more errors than open the breaker, which does not count these
            with pytest.raises(Unavailable) as caught:
                await put(site.store, replace(site.known.record, revoked_at=1.0))
            assert caught.value.retry_after_s
        assert await site.store.every(Tenant) == [ACME]
        await site.link.command("REPLICAOF", "NO", "ONE")
        primary.thaw()
    await put(site.store, replace(site.known.record, revoked_at=1.0))
    site.forget_by_time()
    assert isinstance(await refusal(site, site.known), Unauthenticated)


async def test_a_full_redis_takes_nothing_by_halves(site: Site) -> None:
    other = replace(ACME, id="tn_other", name="other")
    await site.link.command("CONFIG", "SET", "maxmemory", "1")
    site.forget_by_time()
    assert (await site.keyring.identify(site.unused.secret)).tenant_id == ACME.id
    for _ in range(10):
        for attempt in (
            site.store.create(other),
            site.store.add_usage([a_row(requests=1)], batch="1"),
            site.store.append_audit(ENTRY),
        ):
            with pytest.raises(StateDiskFull):
                await attempt
    await site.store.link.check()
    assert site.store.link.fault is not None
    assert site.store.link.fault.status == "disk_full"
    await site.link.command("CONFIG", "SET", "maxmemory", "0")
    await site.store.link.check()
    assert site.store.link.fault is None
    assert await site.store.every(Tenant) == [ACME]
    await site.store.create(other)  # the other tenant's id and name are still free
    with pytest.raises(Conflict):
        await site.store.create(other)
    assert await site.store.usage("2026-01-01", "2026-12-31") == []
    await site.store.add_usage([a_row(requests=1)], batch="1")
    assert len(await site.store.usage("2026-01-01", "2026-12-31")) == 1


async def test_a_redis_that_may_evict_says_so_and_serves(site: Site) -> None:
    link = site.store.link
    await site.link.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    await link.check()
    assert link.fault is None, "the control: it evicts nothing without a bound"
    await site.link.command("CONFIG", "SET", "maxmemory", "1gb")
    await link.check()
    assert link.fault is not None
    assert link.fault.status == "state_evicts"
    assert "allkeys-lru" in link.fault.reason
    assert await site.store.every(Tenant) == [ACME]
    await site.link.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    await link.check()
    assert link.fault is None


async def test_a_redis_that_does_not_tell_its_policy_is_asked_once(site: Site) -> None:
    for words in (("maxmemory-policy", "allkeys-lru"), ("maxmemory", "1gb")):
        await site.link.command("CONFIG", "SET", *words)
    await site.link.command("ACL", "SETUSER", "default", "-info")
    link = site.store.link
    await link.check()
    await link.check()
    assert link.fault is None
    assert await site.store.every(Tenant) == [ACME]
    log = await site.link.command("ACL", "LOG")
    assert [dict(zip(entry[::2], entry[1::2], strict=True))[b"count"] for entry in log] == [1]


async def test_a_redis_whose_own_disk_is_full_says_so(tmp_path: Path) -> None:
    try:
        with small_disk(tmp_path / "disk", "8m") as disk:
            await refuses_until_there_is_room(disk)
    except PermissionError as error:
        pytest.skip(f"no file system of one's own: {error}")


async def refuses_until_there_is_room(disk: Path) -> None:
    with redis_server(disk, "--appendonly", "yes") as server:
        store = RedisStore(RedisLink(connect(server.url), timeout_s=5.0))
        await store.create(ACME)
        filling = fill_up(disk)

        async def fill_the_last_page() -> None:
            for number in range(2000):
                await store.append_audit(replace(ENTRY, time=float(number)))
                await asyncio.sleep(0.002)

        with pytest.raises(StateDiskFull):
            await fill_the_last_page()
        assert await store.every(Tenant) == [ACME]
        await store.link.check()
        assert store.link.fault is not None
        assert store.link.fault.status == "disk_full"
        filling.unlink()
        async with asyncio.timeout(20):
            while store.link.fault is not None:
                await store.link.check()
                await asyncio.sleep(0.1)
        await store.append_audit(ENTRY)
        await store.close()


async def test_a_password_is_needed_where_there_is_one(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with redis_server(tmp_path_factory.mktemp("guarded"), "--requirepass", "hush") as server:
        outsider = RedisStore(RedisLink(connect(server.url)))
        with pytest.raises(Unavailable) as caught:
            await outsider.every(Tenant)
        assert "hush" not in str(caught.value)
        await outsider.close()
        insider = RedisStore(RedisLink(connect(server.url, "hush"), timeout_s=5.0))
        assert await insider.every(Tenant) == []
        await insider.close()


async def test_no_log_line_quotes_what_was_sent(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Unavailable):
        await site.link.command("HSET", "canary-8c1d")
    with pytest.raises(Unavailable):
        await site.link.command("canary-8c1d")
    assert "Redis refused a command" in caplog.text
    assert "canary" not in caplog.text
