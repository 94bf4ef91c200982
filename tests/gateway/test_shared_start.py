"""The first start of several gateways on one Redis, with their secrets in files."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.auth.keyring import Keyring
from gateway.config import Shared
from gateway.errors import Unavailable
from gateway.startup.first_start import (
    BadAdminKey,
    FirstStart,
    ensure_first_start,
    find_secrets,
    load_admin_key,
)
from gateway.state.home import STATE_FILE, open_home
from gateway.state.identity import WrongState
from gateway.state.private_file import FileExposed, FileMissing, PrivateFileDamaged
from gateway.state.records import ApiKey, Tenant
from gateway.state.redis.link import open_link
from tests.doubles.gateway.redis_server import RedisServer, redis_server
from tests.gateway.support.manual_clock import ManualClock

CLOCK = ManualClock()
HANDED_IN = {
    "ratoon_server_secret": "s" * 64 + "\n",
    "ratoon_pepper": "p" * 64 + "\n",
    "ratoon_admin_key": "sk-admin-of-all-gateways\n",
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    directory = tmp_path / "redis"
    directory.mkdir()
    with redis_server(directory) as server:
        yield server


@pytest.fixture
def secrets_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "secrets"
    directory.mkdir()
    for name, text in HANDED_IN.items():
        (directory / name).write_text(text)
        (directory / name).chmod(0o444)  # the mode with which Docker mounts secrets
    return directory


@pytest.fixture
def shared(server: RedisServer, secrets_dir: Path) -> Shared:
    return Shared(redis_url=server.url, redis_timeout_s=5.0, secrets_dir=str(secrets_dir))


def keys(start: FirstStart) -> tuple[str | None, ...]:
    return start.admin_key, start.demo_key, start.demo2_key


async def contents(data_dir: Path, shared: Shared) -> dict[str, int]:
    """Return the number of each tenant's keys."""
    async with open_home(data_dir, shared) as home:
        tenants = await home.store.every(Tenant)
        return {t.name: len(await home.store.list_keys(t.id)) for t in tenants}


async def opens(data_dir: Path, shared: Shared, key: str | None) -> str:
    pepper = find_secrets(data_dir, shared).pepper
    async with open_home(data_dir, shared) as home:
        caller = await Keyring(home.store, pepper, CLOCK).identify(key or "")
        return (await home.store.get(Tenant, caller.tenant_id)).name


async def test_a_redis_that_may_evict_is_refused(
    tmp_path: Path, shared: Shared, server: RedisServer
) -> None:
    link = open_link(shared)
    await link.command("CONFIG", "SET", "maxmemory", "1gb")
    await link.command("CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
    with pytest.raises(WrongState, match="volatile-ttl"):
        await ensure_first_start(tmp_path / "gateway", clock=CLOCK, shared=shared)
    assert await link.command("DBSIZE") <= 1, "no tenant is in it, at most the state's id"
    await link.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    await ensure_first_start(tmp_path / "gateway", clock=CLOCK, shared=shared)
    await link.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lfu")
    with pytest.raises(WrongState, match="allkeys-lfu"):
        await ensure_first_start(tmp_path / "gateway", clock=CLOCK, shared=shared)
    await link.close()


async def test_gateways_that_start_at_once_agree(tmp_path: Path, shared: Shared) -> None:
    places = [tmp_path / f"gateway-{i}" for i in range(4)]
    starts = await asyncio.gather(
        *(ensure_first_start(place, clock=CLOCK, shared=shared) for place in places)
    )
    assert len({keys(start) for start in starts}) == 1
    assert starts[0].admin_key == load_admin_key(places[0]) == "sk-admin-of-all-gateways"
    assert await contents(places[0], shared) == {"demo": 1, "demo2": 1}
    assert await opens(places[3], shared, starts[0].demo_key) == "demo"
    assert await opens(places[0], shared, starts[3].demo2_key) == "demo2"
    assert not (places[0] / STATE_FILE).exists()


async def test_a_gateway_that_keeps_nothing_adds_no_key_when_it_starts_again(
    tmp_path: Path, shared: Shared
) -> None:
    starts = [
        await ensure_first_start(tmp_path / str(i), clock=CLOCK, shared=shared) for i in range(3)
    ]
    assert len({keys(start) for start in starts}) == 1
    assert await contents(tmp_path / "0", shared) == {"demo": 1, "demo2": 1}


async def test_a_revoked_demo_key_does_not_come_back(tmp_path: Path, shared: Shared) -> None:
    first = await ensure_first_start(tmp_path / "a", clock=CLOCK, shared=shared)
    async with open_home(tmp_path, shared) as home:
        demo = next(t for t in await home.store.every(Tenant) if t.name == "demo")
        [key] = await home.store.list_keys(demo.id)
        await Keyring(home.store, find_secrets(tmp_path, shared).pepper, CLOCK).revoke(key.id)
        await home.store.delete(
            Tenant, next(t.id for t in await home.store.every(Tenant) if t.name == "demo2")
        )
    second = await ensure_first_start(tmp_path / "b", clock=CLOCK, shared=shared)
    assert second.demo_key == first.demo_key
    async with open_home(tmp_path, shared) as home:
        assert (await home.store.get(ApiKey, key.id)).revoked_at is not None
    assert second.demo2_key != first.demo2_key  # a new tenant of the same name, with another key


async def test_a_demo_key_after_everything_was_lost_is_another(
    tmp_path: Path, shared: Shared
) -> None:
    first = await ensure_first_start(tmp_path / "a", clock=CLOCK, shared=shared)
    link = open_link(shared)
    await link.command("FLUSHALL")
    await link.close()
    second = await ensure_first_start(tmp_path / "b", clock=CLOCK, shared=shared)
    assert second.demo_key != first.demo_key


async def test_without_redis_a_first_start_says_so_and_a_later_one_needs_none(
    tmp_path: Path, shared: Shared, server: RedisServer
) -> None:
    first = await ensure_first_start(tmp_path / "a", clock=CLOCK, shared=shared)
    server.kill()
    with pytest.raises(Unavailable):
        await ensure_first_start(tmp_path / "b", clock=CLOCK, shared=shared)
    again = await ensure_first_start(tmp_path / "a", clock=CLOCK, shared=shared)
    assert keys(again) == keys(first)


async def test_secrets_handed_in_serve_sqlite_too(tmp_path: Path, secrets_dir: Path) -> None:
    shared = Shared(secrets_dir=str(secrets_dir))
    start = await ensure_first_start(tmp_path / "a", clock=CLOCK, shared=shared)
    assert await opens(tmp_path / "a", shared, start.demo_key) == "demo"
    assert sorted(file.name for file in (tmp_path / "a").glob("*.*")) == [
        "keys.env",
        "state.id",
        STATE_FILE,
    ]
    assert stat.S_IMODE((tmp_path / "a" / "keys.env").stat().st_mode) == 0o600


async def test_secrets_that_are_not_good_are_named(tmp_path: Path, secrets_dir: Path) -> None:
    shared = Shared(secrets_dir=str(secrets_dir))

    async def start() -> FirstStart:
        return await ensure_first_start(tmp_path / "a", clock=CLOCK, shared=shared)

    async def refused(name: str, error: type[Exception], text: str | None, mode: int) -> None:
        file = secrets_dir / name
        file.chmod(0o600)
        if text is None:
            file.unlink()
        else:
            file.write_text(text)
            file.chmod(mode)
        with pytest.raises(error) as refusal:
            await start()
        assert not text or text not in str(refusal.value)
        file.write_text(HANDED_IN[name])
        file.chmod(0o444)

    for name in HANDED_IN:
        await refused(name, FileMissing, None, 0)
        await refused(name, PrivateFileDamaged, "\n", 0o444)
        await refused(name, FileExposed, HANDED_IN[name], 0o666)
    await refused("ratoon_pepper", PrivateFileDamaged, "short", 0o444)
    await refused("ratoon_server_secret", PrivateFileDamaged, "s" * 31, 0o444)
    await refused("ratoon_admin_key", BadAdminKey, "short", 0o444)
    assert (await start()).admin_key == HANDED_IN["ratoon_admin_key"].strip()
