from __future__ import annotations

import asyncio

import pytest

from engine.errors import EngineUnavailable
from engine.link.gateway_end.in_time import in_time


async def answered() -> int:
    await asyncio.sleep(0)
    return 7


async def test_an_answer_is_passed_on() -> None:
    assert await in_time(answered(), 10.0) == 7
    assert await in_time(answered(), None) == 7


async def test_an_engine_that_hangs_is_unavailable() -> None:
    with pytest.raises(EngineUnavailable, match="in time"):
        await in_time(asyncio.Event().wait(), 0.0)
