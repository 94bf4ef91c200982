"""Hears from Redis which tenants changed, so that other gateways' changes are seen at once.

The news may get lost: a connection breaks, a server restarts. What bounds the harm is that
keyrings look keys up again after a few seconds anyway; and whoever subscribes anew has them all
looked up, because nobody knows what was said in between.

Knows: the channel. Does not know: what is forgotten.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from gateway.state.redis_keys import CHANGES

RECONNECT_S = 0.5
PING_S = 5.0


class Listener(Protocol):
    """Who is told. `gateway.keyring.Keyring` is one."""

    def forget(self, tenant_id: str) -> None:
        """Something of this tenant changed."""
        ...

    def look_afresh(self) -> None:
        """Anything may have changed."""
        ...


@asynccontextmanager
async def told_of_changes(client: Redis, listener: Listener) -> AsyncIterator[None]:
    """Tell `listener` of changes for as long as this is open; `client` is not closed."""
    hearing = asyncio.create_task(_hear_always(client, listener))
    try:
        yield
    finally:
        hearing.cancel()
        with suppress(asyncio.CancelledError):
            await hearing


async def _hear_always(client: Redis, listener: Listener) -> None:
    while True:
        with suppress(RedisError, OSError):
            async with client.pubsub() as channel:
                await _hear(channel, listener)
        await asyncio.sleep(RECONNECT_S)


async def _hear(channel: PubSub, listener: Listener) -> None:
    """Until the connection breaks. A server that answers no ping has gone as well."""
    await channel.subscribe(CHANGES)
    last_word = time.monotonic()
    while time.monotonic() - last_word < 2 * PING_S:
        message = await channel.get_message(timeout=PING_S)
        if message is None:
            await channel.ping()
            continue
        last_word = time.monotonic()
        _tell(message, listener)


def _tell(message: dict[str, Any], listener: Listener) -> None:
    if message["type"] == "subscribe":
        listener.look_afresh()
    elif message["type"] == "message":
        listener.forget(message["data"].decode())
