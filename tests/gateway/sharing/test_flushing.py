"""A flush is recorded, sent to all engines, and repeated to engines that were unreachable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from gateway.errors import Unavailable
from gateway.replicas.flushes import FlushReader
from gateway.sharing.flushing import Flushing, FlushResult
from gateway.state.records import CacheFlush
from tests.gateway.replicas.rig import Fleet, until
from tests.gateway.state.memory_store import MemoryStore
from tests.gateway.support.manual_clock import ManualClock


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
    flushing = Flushing(store, fleet.set, clock, FlushReader())
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
    flushing = Flushing(store, fleet.set, clock, FlushReader())
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
        await Flushing(store, fleet.set, clock, FlushReader()).flush(None)
    assert [one.recorded for one in fleet.replicas] == [{}] * 3


def process(store: MemoryStore, now: Callable[[], float]) -> FlushReader:
    """Return a new gateway's flush reader, which sends flushes to engines that connect."""
    reader = FlushReader(now)
    reader.found(store)
    return reader


async def test_a_flush_that_is_due_again_is_made_by_whoever_runs_then() -> None:
    store, now, other = MemoryStore(), ManualClock(1.0), Fleet()
    gone = Flushing(store, Fleet().set, clock, process(store, now))
    runs = process(store, now)
    first = await gone.record("tn_a", again_s=5.0)
    assert await gone.flush("tn_b") == FlushResult(0)
    del gone  # the first gateway's process has ended
    before = await runs.read()
    assert [*before.values()] == ["tn_a", "tn_b"]
    now.advance(5.0)
    assert await runs.read() == before | {first.second_id: "tn_a"}
    await Flushing(store, other.set, clock, runs).renew()
    assert other["a"].recorded == before | {first.second_id: "tn_a"}


@pytest.mark.parametrize("jump", [-3600.0, 0.0, 3600.0])
async def test_no_clock_that_is_set_decides_when_a_flush_is_due_again(jump: float) -> None:
    """Repeat a flush when it is due, even if the machine's clock was set after the record."""
    store, now, wall = MemoryStore(), ManualClock(1.0), ManualClock(1e9)
    fleet, reader = Fleet(), process(store, now)
    flushing = Flushing(store, fleet.set, wall, reader)
    first = await flushing.record("tn_a", again_s=5.0)
    await flushing.renew()
    wall.advance(jump)
    now.advance(4.9)
    await flushing.renew()
    assert fleet["a"].recorded == {first.id: "tn_a"}, "not sooner"
    now.advance(0.1)
    await flushing.renew()
    assert fleet["a"].recorded == {first.id: "tn_a", first.second_id: "tn_a"}, "nor later"


@pytest.mark.parametrize("tenant_id", ["tn_a", None])
async def test_another_flush_of_the_tenant_does_not_undo_that_it_is_due_again(
    tenant_id: str | None,
) -> None:
    store, now = MemoryStore(), ManualClock(1.0)
    reader = process(store, now)
    flushing = Flushing(store, Fleet().set, clock, reader)
    await flushing.record("tn_a", again_s=5.0)
    now.advance(2.0)
    await flushing.flush(tenant_id)
    [second] = await reader.read()
    now.advance(5.0)
    assert await reader.read() == {second: tenant_id, f"{second}_again": tenant_id}
    await flushing.flush(tenant_id)
    [third] = await reader.read()
    now.advance(60.0)
    assert await reader.read() == {third: tenant_id}, "the control: it was not due again"


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
