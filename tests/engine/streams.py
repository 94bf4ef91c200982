"""Answers of an engine, read to their end."""

from __future__ import annotations

from engine.interface import Engine
from engine.messages import Finished, Generate


async def collect(engine: Engine, request: Generate) -> tuple[list[int], Finished]:
    """All tokens of a request, and how it ended."""
    tokens: list[int] = []
    async for event in engine.generate(request):
        if isinstance(event, Finished):
            return tokens, event
        tokens += event.token_ids
    raise AssertionError("the stream ended without an end")
