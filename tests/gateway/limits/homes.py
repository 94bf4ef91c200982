"""Every kind of store of limits, on a clock that tests set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import redis

from gateway.limits import scripts
from gateway.limits.limiter import Amount, Demand, Denied, Granted, Limiter
from gateway.limits.memory import Clocks, MemoryLimiter
from gateway.limits.redis import RedisLimiter
from gateway.limits.sqlite import SqliteLimiter
from gateway.state.redis.link import RedisLink, connect
from gateway.tenant_limits import Limits
from tests.doubles.gateway.redis_server import RedisServer
from tests.gateway.support.manual_clock import ManualClock

NOTHING = Amount()
PATIENCE_S = 20.0
START = datetime(2026, 11, 30, 23, 0, tzinfo=UTC).timestamp()
MANUAL_CLOCK = "{redis.call('HGET', 'clock', 's'), redis.call('HGET', 'clock', 'us')}"


@dataclass
class Home:
    """A limiter, a second limiter over the same store, and their common clock."""

    limiter: Limiter
    sibling: Limiter
    advance: Callable[[float], None]

    async def reserve(
        self, limits: Limits, most: Amount = NOTHING, *, name: str, tenant: str = "tn_a"
    ) -> Granted | Denied:
        return await self.limiter.reserve(Demand(name, tenant, limits, most))

    async def granted(
        self, limits: Limits, most: Amount = NOTHING, *, name: str, tenant: str = "tn_a"
    ) -> Granted:
        verdict = await self.reserve(limits, most, name=name, tenant=tenant)
        assert isinstance(verdict, Granted), verdict
        return verdict

    async def refused(
        self, limits: Limits, most: Amount = NOTHING, *, name: str, tenant: str = "tn_a"
    ) -> Denied:
        verdict = await self.reserve(limits, most, name=name, tenant=tenant)
        assert isinstance(verdict, Denied), verdict
        return verdict

    async def grants(
        self, limits: Limits, most: Amount = NOTHING, *, name: str, tenant: str = "tn_a"
    ) -> bool:
        return isinstance(await self.reserve(limits, most, name=name, tenant=tenant), Granted)

    async def refuses(
        self, limits: Limits, most: Amount = NOTHING, *, name: str, tenant: str = "tn_a"
    ) -> bool:
        return not await self.grants(limits, most, name=name, tenant=tenant)


class RedisClock:
    """A clock that tests set, which Redis's scripts read in place of Redis's time."""

    def __init__(self, server: RedisServer) -> None:
        self._client: redis.Redis = redis.Redis(port=server.port)
        self.set(START)

    def set(self, now: float) -> None:
        self.now = now
        micros = int(now * 1e6)  # rounded like the time of `Clocks`
        for name, value in (("s", micros // 1_000_000), ("us", micros % 1_000_000)):
            self._client.hset("clock", name, str(value))

    def advance(self, seconds: float) -> None:
        self.set(self.now + seconds)

    def close(self) -> None:
        self._client.close()


def memory_home() -> Home:
    clock = ManualClock(START)
    limiter = MemoryLimiter(Clocks(clock, clock))
    return Home(limiter, limiter, clock.advance)


def sqlite_home(directory: Path) -> Home:
    clock = ManualClock(START)
    path = directory / "limits.sqlite"
    clocks = Clocks(clock, clock)
    return Home(SqliteLimiter(path, clocks), SqliteLimiter(path, clocks), clock.advance)


class LoneLimiter(RedisLimiter):
    """A limiter with its own connection to Redis, which it closes."""

    def __init__(self, link: RedisLink, *, clock: str = scripts.CLOCK) -> None:
        super().__init__(link, clock=clock)
        self.link = link

    async def close(self) -> None:
        await self.link.close()


def patient(server: RedisServer, *, clock: str = scripts.CLOCK) -> RedisLimiter:
    """Make a limiter that does not time out on a busy machine."""
    client = connect(server.url, timeout_s=PATIENCE_S)
    return LoneLimiter(RedisLink(client, timeout_s=PATIENCE_S), clock=clock)


@contextmanager
def redis_home(server: RedisServer) -> Iterator[Home]:
    with redis.Redis(port=server.port) as client:
        client.flushall()
    clock = RedisClock(server)
    one, other = (patient(server, clock=MANUAL_CLOCK) for _ in range(2))
    yield Home(one, other, clock.advance)
    clock.close()
