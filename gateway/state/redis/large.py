"""A second link to the same Redis for commands of unbounded size.

Stored responses, listings, reports: tenants and operators decide how large they are, and several
megabytes do not cross within the link's timeout, however well Redis is. So they have connections
of their own, a time by their size, and no breaker: one that comes too late is one call's failure.

Knows: how they cross. Does not know: what is large (`identity`, and who asks it).
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from redis.asyncio import BlockingConnectionPool, Redis

from gateway.state.redis.link import RedisLink

T = TypeVar("T")

UNSIZED = 2 << 20  # bytes expected of an answer of unknown size


class LargeLink(RedisLink):
    """A link for large calls beside the main link, whose circuit breaker it asks first."""

    calls_at_once = 2
    commands_at_once = 16  # Redis answers a whole round trip before it serves other clients

    def __init__(self, beside: RedisLink) -> None:
        super().__init__(
            _connected_like(beside.client, self.calls_at_once), timeout_s=beside.timeout_s
        )
        self._beside = beside

    async def run(self, work: Callable[[], Awaitable[T]], size: int = UNSIZED) -> T:
        """Run `work` on the client when its turn has come. Raises Unavailable."""
        async with self._turns:
            # Fails at once while the breaker is open. A Redis with a full disk refuses PING.
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
