"""The loss of a state is noticed by every gateway, in both kinds of store."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.config import Shared
from gateway.errors import StateLost
from gateway.state.home import STATE_FILE, open_home
from gateway.state.identity import KEYS_FILE, forget
from gateway.state.records import Tenant
from gateway.state.redis.link import RedisLink, connect
from tests.doubles.gateway.redis_server import RedisServer
from tests.gateway.state.contract import a_tenant
from tests.gateway.state.lost_contract import LostStateContract, Place


class TestSqlite(LostStateContract):
    """The contract after a loss, on a real file."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        data_dir, other, saved = tmp_path / "data", tmp_path / "other", tmp_path / "saved"
        data_dir.mkdir(0o700)
        other.mkdir(0o700)
        file = data_dir / STATE_FILE

        async def empty() -> None:
            os.truncate(file, 0)

        async def exchange() -> None:
            async with open_home(other, Shared()):
                pass
            (other / STATE_FILE).replace(file)

        async def save() -> None:
            shutil.copy(file, saved)

        async def restore() -> None:
            shutil.copy(saved, file)

        return Place(data_dir, Shared(), empty, exchange, save, restore)


class TestRedis(LostStateContract):
    """The contract after a loss, on a real Redis."""

    @pytest.fixture
    async def place(self, tmp_path: Path, server: RedisServer) -> AsyncIterator[Place]:
        client = RedisLink(connect(server.url), timeout_s=5.0)
        saved: dict[bytes, bytes] = {}

        async def empty() -> None:
            await client.command("FLUSHALL")

        async def exchange() -> None:
            await empty()
            await client.command("SET", "ratoon:state-id", "f" * 32)

        async def save() -> None:
            for key in await client.command("KEYS", "*"):
                saved[key] = await client.command("DUMP", key)

        async def restore() -> None:
            await empty()
            for key, value in saved.items():
                await client.command("RESTORE", key, 0, value)

        await empty()
        tmp_path.chmod(0o700)
        shared = Shared(redis_url=server.url, redis_timeout_s=5.0)
        yield Place(tmp_path, shared, empty, exchange, save, restore)
        await client.close()


@pytest.fixture
async def emptied(server: RedisServer) -> Shared:
    client = RedisLink(connect(server.url), timeout_s=5.0)
    await client.command("FLUSHALL")
    await client.close()
    return Shared(redis_url=server.url, redis_timeout_s=5.0)


async def test_gateways_with_directories_of_their_own_agree(
    tmp_path: Path, emptied: Shared
) -> None:
    directories = [tmp_path / name for name in ("a", "b")]
    for directory in directories:
        directory.mkdir(0o700)
    async with open_home(directories[0], emptied) as one, open_home(directories[1], emptied) as two:
        await one.store.create(a_tenant())
        assert await two.store.every(Tenant) == [a_tenant()]
    markers = {(directory / "state.id").read_text() for directory in directories}
    assert len(markers) == 1


async def test_a_write_may_be_the_first_to_find_redis_emptied(
    tmp_path: Path, server: RedisServer, emptied: Shared
) -> None:
    tmp_path.chmod(0o700)
    client = RedisLink(connect(server.url), timeout_s=5.0)
    async with open_home(tmp_path, emptied) as home:
        await home.store.create(a_tenant())
        await client.command("FLUSHALL")
        with pytest.raises(StateLost):
            await home.store.create(a_tenant("other"))
        assert await client.command("DBSIZE") == 0
        assert home.watched.fault is not None
    await client.close()


async def test_one_that_accepts_a_new_state_leaves_the_other_red(
    tmp_path: Path, server: RedisServer, emptied: Shared
) -> None:
    directories = [tmp_path / name for name in ("a", "b")]
    for directory in directories:
        directory.mkdir(0o700)
    async with open_home(directories[1], emptied) as other:
        async with open_home(directories[0], emptied) as one:
            await one.store.create(a_tenant())
        await other.watched.check()
        client = RedisLink(connect(server.url), timeout_s=5.0)
        await client.command("FLUSHALL")
        await client.close()
        forget(directories[0], "state")
        async with open_home(directories[0], emptied, new_state=True) as one:
            await one.store.create(a_tenant("new"))
        await other.watched.check()
        assert other.watched.fault is not None
        assert other.watched.fault.status == "state_missing"


async def test_an_empty_redis_after_a_completed_first_start_is_refused(
    tmp_path: Path, emptied: Shared
) -> None:
    (tmp_path / KEYS_FILE).touch(0o600)
    async with open_home(tmp_path, emptied) as home:
        await home.watched.check()
        assert home.watched.fault is not None
    async with open_home(tmp_path, emptied, new_state=True) as home:
        await home.watched.check()
        assert home.watched.fault is None
