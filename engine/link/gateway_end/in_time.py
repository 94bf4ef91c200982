"""Waiting for an engine's answer for a limited time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from engine.errors import EngineUnavailable

T = TypeVar("T")


async def in_time(answer: Awaitable[T], within_s: float | None) -> T:
    """Wait for an answer for `within_s` seconds, or without limit. Raises EngineUnavailable."""
    try:
        async with asyncio.timeout(within_s):
            return await answer
    except TimeoutError as error:
        raise EngineUnavailable("the engine did not answer in time") from error
