"""Answers of an engine, read to their end."""

from __future__ import annotations

import asyncio

from engine.link.event_messages import Finished, Tokens
from engine.link.interface import Engine
from engine.link.messages import Generate, Welcome


async def collect(engine: Engine, request: Generate) -> tuple[list[int], Finished]:
    """Return all tokens of a request, and its last event."""
    tokens: list[int] = []
    async for event in engine.generate(request):
        if isinstance(event, Finished):
            return tokens, event
        assert isinstance(event, Tokens), "one engine alone restarts nothing"
        tokens += event.token_ids
    raise AssertionError("the stream ended without an end")


async def welcomed(engine: Engine) -> Welcome:
    """Return the welcome of the engine, once one is connected."""
    while (welcome := engine.welcome) is None:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    return welcome
