"""A second link to the same Redis for commands of unbounded size.

Tenants and operators decide how large stored responses, listings and reports are, and several
megabytes do not cross within the main link's timeout, even if Redis works well. So large commands
have connections of their own and a timeout by their size. Their timeouts do not count for the
circuit breaker: a late answer fails only its own call.

Knows: how large commands are sent. Does not know: which commands are large (`identity` and its
callers).
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from redis.asyncio import BlockingConnectionPool, Redis

from gateway.state.redis.link import RedisLink

T = TypeVar("T")

UNSIZED = 2 << 20  # number of bytes assumed of an answer of unknown size


class LargeLink(RedisLink):
    """A link for large calls; each call first asks the circuit breaker of the main link."""

    calls_at_once = 2
    # commands in one round trip, which Redis answers before it serves other clients
    commands_at_once = 16

    def __init__(self, beside: RedisLink) -> None:
        super().__init__(
            _connected_like(beside.client, self.calls_at_once), timeout_s=beside.timeout_s
        )
        self._beside = beside

    async def run(self, work: Callable[[], Awaitable[T]], size: int = UNSIZED) -> T:
        """Run `work` on the client when its turn has come. Raises Unavailable."""
        async with self._turns:
            # PING fails at once while the breaker is open; a Redis with a full disk refuses it.
            await self._beside.command("ECHO", "there?")
            return await self._run(work, size)

    def _fail(self, error: Exception) -> None:
        self._log_seldom("Redis is there, and too slow with what is large", type(error).__name__)


def _connected_like(client: Redis, connections: int) -> Redis:
    """Make a client of the same Redis, with the same password and timeouts."""
    like = client.connection_pool
    return Redis.from_pool(
        BlockingConnectionPool(
            connections, connection_class=like.connection_class, **like.connection_kwargs
        )
    )
