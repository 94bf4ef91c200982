from __future__ import annotations

import pytest

from engine.errors import EngineUnavailable
from gateway.bounded_engine import BoundedEngine
from tests.gateway.support.operated_engine import OperatedEngine


async def test_an_engine_that_answers_is_passed_on() -> None:
    engine = OperatedEngine()
    bounded = BoundedEngine(engine)
    assert (await bounded.stats()).flows is engine.counters.flows
    assert await bounded.flush("tn_1") == 7
    assert await bounded.flush(None) == 7
    assert engine.flushes == ["tn_1", None]


async def test_an_engine_that_hangs_is_unavailable() -> None:
    engine = OperatedEngine()
    engine.hangs = True
    bounded = BoundedEngine(engine, deadline_s=0.0)
    with pytest.raises(EngineUnavailable, match="in time"):
        await bounded.stats()
    with pytest.raises(EngineUnavailable, match="in time"):
        await bounded.flush(None)
    assert engine.flushes == []


async def test_an_engine_that_is_away_says_so_itself() -> None:
    engine = OperatedEngine()
    engine.connected = False
    with pytest.raises(EngineUnavailable, match="connected"):
        await BoundedEngine(engine).stats()
