"""A flush is recorded, asked of all, and told to whoever was away; also what others record."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from gateway.errors import Unavailable
from gateway.replicas.flushes import FlushReader
from gateway.sharing.flushing import Flushing, FlushResult
from gateway.state.records import CacheFlush
from tests.gateway.replicas.rig import Fleet, until
from tests.gateway.state.memory_store import MemoryStore


class AtTimesAway(MemoryStore):
    """A store that does not answer while `is_away`."""

    is_away = False

    async def add_flush(self, flush: CacheFlush) -> None:
        if self.is_away:
            raise Unavailable("away")
        await super().add_flush(flush)

    async def flushes(self) -> list[CacheFlush]:
        if self.is_away:
            raise Unavailable("away")
        return await super().flushes()


def clock() -> float:
    return 1.0


async def test_those_that_are_away_are_named_and_told_later() -> None:
    fleet, store = Fleet(), MemoryStore()
    flushing = Flushing(store, fleet.set, clock)
    assert await flushing.flush("tn_a") == FlushResult(0)
    fleet["b"].die()
    fleet["c"].is_stalled = True
    fleet["c"].welcome = None
    assert await flushing.flush(None) == FlushResult(0, ("b", "c"))
    [recorded] = await store.flushes()
    assert [one.recorded for one in fleet.replicas] == [{recorded.id: None}] * 3
    fleet["a"].die()
    assert await flushing.flush("tn_b") == FlushResult(None, ("a", "b", "c"))


async def test_what_another_gateway_records_is_passed_on() -> None:
    fleet, store = Fleet(), AtTimesAway()
    flushing = Flushing(store, fleet.set, clock)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(flushing.kept())
        store.is_away = True
        flushing.reload()
        await asyncio.sleep(0.01)
        store.is_away = False
        await store.add_flush(CacheFlush(id="fl_1", tenant_id="tn_a", at=1.0))
        flushing.forget("fl_1")
        await until(lambda: fleet["a"].recorded == {"fl_1": "tn_a"})


async def test_without_the_state_nothing_is_flushed() -> None:
    fleet, store = Fleet(), AtTimesAway()
    store.is_away = True
    with pytest.raises(Unavailable):
        await Flushing(store, fleet.set, clock).flush(None)
    assert [one.recorded for one in fleet.replicas] == [{}] * 3


async def test_a_flush_that_is_due_later_waits_for_the_state() -> None:
    fleet, store = Fleet(), AtTimesAway()
    flushing = Flushing(store, fleet.set, clock)
    async with flushing.kept():
        store.is_away = True
        flushing.flush_again("tn_a", after_s=0.001)
        await asyncio.sleep(0.02)
        assert [one.recorded for one in fleet.replicas] == [{}] * 3
        store.is_away = False
        await until(lambda: [*fleet["a"].recorded.values()] == ["tn_a"])
        flushing.flush_again("tn_b", after_s=600.0)
    await asyncio.sleep(0)
    assert not [one for one in asyncio.all_tasks() if one.get_name() == "flush-again"]


async def test_a_reader_waits_for_the_state() -> None:
    reader, store = FlushReader(), AtTimesAway()
    await store.add_flush(CacheFlush(id="fl_1", tenant_id=None, at=1.0))
    store.is_away = True
    reading = asyncio.create_task(reader.read())
    await asyncio.sleep(0.01)
    reader.found(store)
    await asyncio.sleep(0.01)
    assert not reading.done()
    store.is_away = False
    assert await reading == {"fl_1": None}
