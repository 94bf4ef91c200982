"""A second link to the same Redis for commands of unlimited size.

Tenants and operators decide how large stored responses, listings and reports are. Several megabytes
may exceed the main link's timeout, even if Redis works well. Large commands therefore have separate
connections and a timeout that grows with their size. Their timeouts do not count for the circuit
breaker, and a late answer fails only its own call.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from redis.asyncio import BlockingConnectionPool, Redis

from gateway.state.redis.link import RedisLink

T = TypeVar("T")

UNSIZED = 2 << 20  # bytes assumed for an answer whose size is unknown


class LargeLink(RedisLink):
    """A link for large calls. Each call first asks the circuit breaker of the main link."""

    calls_at_once = 2
    # number of commands in a round trip; Redis answers all of them before it serves other clients
    commands_at_once = 16

    def __init__(self, beside: RedisLink) -> None:
        super().__init__(
            _connected_like(beside.client, self.calls_at_once), timeout_s=beside.timeout_s
        )
        self._beside = beside

    async def run(self, work: Callable[[], Awaitable[T]], size: int = UNSIZED) -> T:
        """Run `work` on the client when its turn has come; raise Unavailable."""
        async with self._turns:
            # ECHO fails at once while the breaker is open. A Redis with a full disk would refuse
            # PING.
            await self._beside.command("ECHO", "there?")
            return await self._run(work, size)

    def _fail(self, error: Exception) -> None:
        self._log_seldom("Redis is there, and too slow with what is large", type(error).__name__)


def _connected_like(client: Redis, connections: int) -> Redis:
    like = client.connection_pool
    return Redis.from_pool(
        BlockingConnectionPool(
            connections, connection_class=like.connection_class, **like.connection_kwargs
        )
    )
