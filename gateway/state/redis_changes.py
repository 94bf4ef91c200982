"""Subscribes to what other gateways change of tenants and prefixes, so that it is seen at once.

Messages may get lost when a connection breaks or a server restarts. The harm is bounded, because
keyrings look keys up again after a few seconds anyway, and after each new subscription everything
is looked up again.

Knows: the channel. Does not know: what is forgotten.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from gateway.state.redis_keys import CHANGES
from gateway.state.store import Listener

RECONNECT_S = 0.5
PING_S = 5.0


@asynccontextmanager
async def told_of_changes(client: Redis, *listeners: Listener) -> AsyncIterator[None]:
    """Tell `listeners` of changes for as long as this is open; `client` is not closed."""
    hearing = asyncio.create_task(_hear_always(client, listeners))
    try:
        yield
    finally:
        hearing.cancel()
        with suppress(asyncio.CancelledError):
            await hearing


async def _hear_always(client: Redis, listeners: Sequence[Listener]) -> None:
    while True:
        with suppress(RedisError, OSError):
            async with client.pubsub() as channel:
                await _hear(channel, listeners)
        await asyncio.sleep(RECONNECT_S)


async def _hear(channel: PubSub, listeners: Sequence[Listener]) -> None:
    """Listen until the connection breaks or the server answers no ping."""
    await channel.subscribe(CHANGES)
    last_word = time.monotonic()
    while time.monotonic() - last_word < 2 * PING_S:
        message = await channel.get_message(timeout=PING_S)
        if message is None:
            await channel.ping()
            continue
        last_word = time.monotonic()
        for listener in listeners:
            _tell(message, listener)


def _tell(message: dict[str, Any], listener: Listener) -> None:
    if message["type"] == "subscribe":
        listener.reload()
    elif message["type"] == "message":
        listener.forget(message["data"].decode())
