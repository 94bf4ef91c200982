"""The gateway's client of Redis: short timeouts, a circuit breaker, one kind of error.

Whatever is wrong with Redis (down, frozen, read-only, full, loading), the caller gets
`Unavailable` with a time to retry after: within a few timeouts at first, and at once while
the breaker is open. Timeouts do not run while the gateway's own event loop is held up
(`gateway.within`). Only a missing answer counts for the breaker: a server that refuses to write
can still be asked about keys.

Knows: the client, its errors. Does not know: what is stored.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from gateway.breaker import PROBE_AFTER_S, Breaker
from gateway.config import Shared
from gateway.errors import Unavailable
from gateway.private_file import read_handed_in
from gateway.within import within

T = TypeVar("T")

TIMEOUT_S = 0.05
MAX_CONNECTIONS = 64
_SOCKET_TIMEOUT_S = 10.0  # for who waits by no other clock
_CALLS_AT_ONCE = 16  # more would only wait there, with their time running
_AT_ONCE = 256  # commands in one round trip

_LOG = logging.getLogger(__name__)


def connect(
    url: str,
    password: str | None = None,
    *,
    timeout_s: float = _SOCKET_TIMEOUT_S,
    as_text: bool = False,
) -> Redis:
    """A client of the server at `url`. It connects when it is first used.

    Replies are bytes, or text. `timeout_s` goes by the clock, however busy this process is; who
    needs an answer soon waits `within` a shorter time.

    A command is sent only once: the caller knows whether it may be repeated. Raises ValueError for
    a malformed URL.
    """
    pool = BlockingConnectionPool.from_url(
        url,
        password=password,
        max_connections=MAX_CONNECTIONS,
        timeout=timeout_s,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        decode_responses=as_text,
    )
    return Redis.from_pool(pool)  # and so closed with it


def open_client(shared: Shared, *, as_text: bool = False) -> Redis:
    """A client of the shared Redis, whose replies are bytes, or text; ValueError without a URL."""
    if shared.redis_url is None:
        raise ValueError("no Redis is shared")
    file = shared.redis_password_file
    password = None if file is None else read_handed_in(Path(file))
    return connect(shared.redis_url, password, as_text=as_text)


class RedisLink:
    """One client behind a breaker; the client is closed with the link. For one event loop.

    `timeout_s` is the longest that one round trip may take.
    """

    def __init__(
        self, client: Redis, breaker: Breaker | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.client = client
        self._breaker = breaker or Breaker(time.monotonic)
        self._timeout_s = timeout_s
        self._turns = asyncio.Semaphore(_CALLS_AT_ONCE)

    async def command(self, *words: Any) -> Any:
        """One command's reply: bytes, int, list or None. Raises Unavailable."""
        send: Callable[..., Awaitable[Any]] = self.client.execute_command
        return await self.run(lambda: send(*words))

    async def commands(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """The replies of many commands, in few round trips, not atomic. Raises Unavailable."""
        replies: list[Any] = []
        for start in range(0, len(commands), _AT_ONCE):
            pipeline = self.client.pipeline(transaction=False)
            for words in commands[start : start + _AT_ONCE]:
                pipeline.execute_command(*words)
            replies += await self.run(pipeline.execute)
        return replies

    def script(self, source: str) -> Script:
        """A Lua script, which runs in one round trip and is loaded again if the server lost it."""
        return Script(self, source)

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` on the client, one round trip, gives. Raises Unavailable."""
        async with self._turns:
            return await self._run(work)

    async def close(self) -> None:
        """Close all connections."""
        await self.client.aclose()

    async def _run(self, work: Callable[[], Awaitable[T]]) -> T:
        if not self._breaker.admits():
            raise unavailable()
        was_open = self._breaker.is_open
        try:
            async with within(self._timeout_s):
                result = await work()
        except (RedisConnectionError, RedisTimeoutError, OSError) as error:
            self._fail(error)
            raise unavailable() from error
        except RedisError as error:
            self._breaker.succeeded()
            _LOG.error("Redis refused a command: %s", _first_word(error))
            raise unavailable() from error
        self._breaker.succeeded()
        if was_open:
            _LOG.warning("Redis answers again")
        return result

    def _fail(self, error: Exception) -> None:
        was_open = self._breaker.is_open
        self._breaker.failed()
        if self._breaker.is_open and not was_open:
            _LOG.error("Redis does not answer: %s", type(error).__name__)


class Script:
    """A Lua script on one link."""

    def __init__(self, link: RedisLink, source: str) -> None:
        self._link = link
        self._script = link.client.register_script(source)

    async def __call__(self, keys: Sequence[str], arguments: Sequence[str | bytes]) -> Any:
        """Run it; raises Unavailable."""
        return await self._link.run(lambda: self._script(keys=list(keys), args=list(arguments)))


def unavailable() -> Unavailable:
    """The refusal while Redis is away or cannot do what is asked."""
    return Unavailable(
        "the gateway cannot reach its state at the moment",
        code="state_unavailable",
        retry_after_s=PROBE_AFTER_S,
    )


def _first_word(error: RedisError) -> str:
    """The kind of a refusal; the rest of its text may quote what was sent."""
    word = str(error).partition(" ")[0]
    return word if word.isupper() and word.isalpha() else type(error).__name__
