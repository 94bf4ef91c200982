"""The gateway's link to Redis: short timeouts, a circuit breaker, one hierarchy of errors.

The state and the limits share the link. When one of them notices that Redis is away, the other
does not wait for timeouts. Commands that may be large have a separate link (`large`).

    Unavailable      Redis was not asked, because it has not answered lately; or it refused
      NoAnswer       Redis was asked and did not answer in time
      StateDiskFull  Redis refused to write, because it has no room

Each error has the time of the next try. The first errors take a timeout each. While the breaker is
open, errors are raised at once. Timeouts do not run while the gateway's own event loop is held up
(`processes/loop_timeout.py`). Only a missing answer counts for the breaker: a server that refuses
to write can still be asked about keys.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from gateway.config import Shared
from gateway.errors import StateDiskFull, Unavailable
from gateway.processes.loop_timeout import loop_timeout
from gateway.state.private_file import read_handed_in

T = TypeVar("T")

TIMEOUT_S = 0.05
FAILURES = 5
PROBE_AFTER_S = 1.0
MAX_CONNECTIONS = 64
_SOCKET_TIMEOUT_S = 10.0
_BYTES_A_SECOND = 2 << 20  # bytes a second that a slow network carries
_LOG_AGAIN_S = 10.0

_LOG = logging.getLogger(__name__)


class Breaker:
    """The circuit breaker of a server that does not answer. The breaker lets single probes through.

    After FAILURES failures in a row the breaker is open. No call is made then, so no caller waits
    for a timeout. Every `probe_after_s` seconds one caller is let through as a probe. If it
    succeeds, the breaker closes. A probe that never reports back blocks nothing, because only the
    time decides when the next probe is due. `monotonic` returns seconds.
    """

    def __init__(
        self, monotonic: Callable[[], float], *, probe_after_s: float = PROBE_AFTER_S
    ) -> None:
        self._monotonic = monotonic
        self._probe_after_s = probe_after_s
        self._failures = 0
        self._next_probe = 0.0

    @property
    def is_open(self) -> bool:
        """True while only probes may call the server."""
        return self._failures >= FAILURES

    def admits(self) -> bool:
        """Return whether to call now.

        If the result is True while the breaker is open, the caller is the probe.
        """
        if not self.is_open:
            return True
        now = self._monotonic()
        if now < self._next_probe:
            return False
        self._next_probe = now + self._probe_after_s
        return True

    def succeeded(self) -> None:
        """Record that the server answered."""
        self._failures = 0

    def failed(self) -> None:
        """Record that the server did not answer."""
        self._failures += 1
        if self.is_open:
            self._next_probe = self._monotonic() + self._probe_after_s


class NoAnswer(Unavailable):
    """The error of a call that Redis did not answer in time. Redis may still carry it out."""


def connect(
    url: str, password: str | None = None, *, timeout_s: float = _SOCKET_TIMEOUT_S
) -> Redis:
    """Make a client of the Redis at `url`. The client connects at its first use.

    Replies are bytes. `timeout_s` is measured by the clock, however busy this process is. Callers
    that need an answer soon use a shorter `loop_timeout`. A command is sent only once, since only
    the caller knows whether it may be repeated. Raises ValueError for a malformed URL.
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
    )
    return Redis.from_pool(pool)  # the pool is closed with the client


def open_link(shared: Shared) -> RedisLink:
    """Open a link to the shared Redis; raise ValueError for a missing or malformed URL."""
    if shared.redis_url is None:
        raise ValueError("no Redis is shared")
    file = shared.redis_password_file
    password = None if file is None else read_handed_in(Path(file))
    return RedisLink(connect(shared.redis_url, password), timeout_s=shared.redis_timeout_s)


class RedisLink:
    """A Redis client behind a circuit breaker. Used in one event loop.

    One round trip may take `timeout_s`, and longer for a call with a `size` in bytes. Closing the
    link closes the client.
    """

    # maximum calls at once: more would only wait in Redis while their timeouts run
    calls_at_once = 16
    commands_at_once = 256

    def __init__(
        self, client: Redis, breaker: Breaker | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.client = client
        self.is_full = False  # whether Redis refused a write for lack of room; callers reset it
        self.timeout_s = timeout_s
        self._breaker = breaker or Breaker(time.monotonic)
        self._turns = asyncio.Semaphore(self.calls_at_once)
        # time from which each kind of failure is logged again
        self._log_again: dict[str, float] = {}

    async def command(self, *words: Any) -> Any:
        """Send one command; return its reply: bytes, int, list or None. Raises Unavailable."""
        send: Callable[..., Awaitable[Any]] = self.client.execute_command
        return await self.run(lambda: send(*words))

    async def commands(self, commands: Sequence[Sequence[Any]], size: int = 0) -> list[Any]:
        """Send many commands in few round trips, not atomically. Raises Unavailable."""
        replies: list[Any] = []
        for start in range(0, len(commands), self.commands_at_once):
            pipeline = self.client.pipeline(transaction=False)
            for words in commands[start : start + self.commands_at_once]:
                pipeline.execute_command(*words)
            replies += await self.run(pipeline.execute, size)
        return replies

    def script(self, source: str) -> Script:
        """Make a Lua script that runs in one round trip and is reloaded if Redis lost it."""
        return Script(self, source)

    async def run(self, work: Callable[[], Awaitable[T]], size: int = 0) -> T:
        """Run `work` on the client in one round trip; raise Unavailable."""
        async with self._turns:
            return await self._run(work, size)

    async def close(self) -> None:
        """Close all connections."""
        await self.client.aclose()

    async def _run(self, work: Callable[[], Awaitable[T]], size: int) -> T:
        if not self._breaker.admits():
            raise unavailable()
        was_open = self._breaker.is_open
        try:
            async with loop_timeout(self.timeout_s + size / _BYTES_A_SECOND):
                result = await work()
        except (RedisConnectionError, RedisTimeoutError, OSError) as error:
            self._fail(error)
            raise unavailable(NoAnswer) from error
        except RedisError as error:
            self._breaker.succeeded()
            self._log_seldom("Redis refused a command", _first_word(error))
            if _is_full(error):
                self.is_full = True
                raise StateDiskFull() from error
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

    def _log_seldom(self, line: str, word: str) -> None:
        now = time.monotonic()
        if now >= self._log_again.get(word, now):
            self._log_again[word] = now + _LOG_AGAIN_S
            _LOG.error("%s: %s", line, word)


class Script:
    """A Lua script on one link."""

    def __init__(self, link: RedisLink, source: str) -> None:
        self._link = link
        self._script = link.client.register_script(source)

    async def __call__(
        self, keys: Sequence[str], arguments: Sequence[str | bytes | float], size: int = 0
    ) -> Any:
        send = partial(self._script, keys=list(keys), args=list(arguments))
        return await self._link.run(send, size)


def unavailable(kind: type[Unavailable] = Unavailable) -> Unavailable:
    """Make the error for a Redis that is away or refuses a command."""
    return kind(
        "the gateway cannot reach its state at the moment",
        code="state_unavailable",
        retry_after_s=PROBE_AFTER_S,
    )


def _is_full(error: RedisError) -> bool:
    return isinstance(error, OutOfMemoryError) or str(error).startswith(("OOM ", "MISCONF "))


def _first_word(error: RedisError) -> str:
    """Return the first word of a refusal, which is its kind. The rest may quote arguments."""
    word = str(error).partition(" ")[0]
    return word if word.isupper() and word.isalpha() else type(error).__name__
