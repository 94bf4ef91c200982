"""Limits are kept in Redis if there is one, or else in a file.

Limits and state share a link to Redis.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.config import Shared
from gateway.errors import StateDiskFull, Unavailable
from gateway.limits.home import LIMITS_FILE, open_limits
from gateway.limits.limiter import Amount, Demand, Granted
from gateway.limits.sqlite import SqliteLimiter
from gateway.state.home import Home, open_home
from gateway.state.records import Tenant
from gateway.state.redis.link import NoAnswer
from gateway.state.reserved_room import ReservedRoom
from gateway.tenant_limits import Budget, Limits
from tests.doubles.gateway.redis_server import RedisServer, redis_server

UNITS = Limits(budget=Budget(units=1.0))  # a budget, so that only Redis decides


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


@pytest.fixture
async def home(server: RedisServer, tmp_path: Path) -> AsyncIterator[Home]:
    shared = Shared(redis_url=server.url, redis_timeout_s=0.25)
    async with open_home(tmp_path, shared) as home:
        yield home


async def fails(home: Home, number: int) -> Unavailable:
    with pytest.raises(Unavailable) as failure:
        await ask(home, number)
    return failure.value


async def ask(home: Home, number: int) -> object:
    limits = open_limits(Path("unused"), ReservedRoom(Path("unused")), home.link, processes=1)
    verdict = await limits.limiter.reserve(Demand(f"r{number}", "tn_a", UNITS, Amount()))
    await limits.limiter.close()
    return verdict


async def test_who_meets_a_dead_redis_first_spares_the_other_the_timeouts(
    home: Home, server: RedisServer
) -> None:
    assert isinstance(await ask(home, 0), Granted)
    server.freeze()
    assert isinstance(await fails(home, 1), NoAnswer)  # Redis was asked
    for _ in range(4):
        with pytest.raises(Unavailable):
            await home.store.every(Tenant)
    assert not isinstance(await fails(home, 2), NoAnswer)  # Redis was not asked
    server.thaw()


async def test_a_full_redis_is_a_fault_whoever_meets_it_and_logged_once(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    assert home.link is not None
    await home.store.every(Tenant)
    assert home.watched.fault is None
    await home.link.command("CONFIG", "SET", "maxmemory", "1")
    with caplog.at_level(logging.ERROR):
        for number in range(5):
            assert isinstance(await fails(home, number), StateDiskFull)
    assert home.watched.fault is not None
    assert home.watched.fault.status == "disk_full"
    assert caplog.text.count("Redis refused a command") == 1
    await home.link.command("CONFIG", "SET", "maxmemory", "0")
    await home.watched.check()
    assert home.watched.fault is None
    assert isinstance(await ask(home, 9), Granted)


async def test_limits_end_and_the_state_goes_on(home: Home) -> None:
    await ask(home, 0)
    assert await home.store.every(Tenant) == []


async def test_without_redis_they_are_in_a_file(tmp_path: Path) -> None:
    home = open_limits(tmp_path, ReservedRoom(tmp_path), None, processes=3)
    assert isinstance(home.limiter, SqliteLimiter)
    assert (tmp_path / LIMITS_FILE).exists()
    assert len(home.watched) == 1  # positive control: there is a file, which a test can damage
    await home.limiter.close()


@pytest.mark.parametrize(
    ("module", "loaded"), [("startup.process", False), ("limits.guarded", True)]
)
def test_a_start_without_redis_does_not_load_its_client(module: str, loaded: bool) -> None:
    code = f"import sys, gateway.{module}; print('redis' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str(loaded)
