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


async def told(store: MemoryStore, now: float) -> dict[str, str | None]:
    """What a gateway that starts tells an engine which connects to it."""
    reader = FlushReader(lambda: now)
    reader.found(store)
    return await reader.read()


async def test_a_flush_that_is_due_again_is_made_by_whoever_runs_then() -> None:
    store, now = MemoryStore(), ManualClock(1.0)
    fleet = Fleet()
    gone = Flushing(store, fleet.set, now)
    first = (await gone.record("tn_a", again_s=5.0)).id
    assert await gone.flush("tn_b") == FlushResult(0)
    del gone  # its process has ended
    assert first in await told(store, now.now)
    now.advance(5.0)
    left = await told(store, now.now)
    assert list(left.values()) == ["tn_a", "tn_b"]
    assert first not in left, "engines do what they have not done under this id"
    other = Fleet()
    await Flushing(store, other.set, now).renew()
    assert other["a"].recorded == left


@pytest.mark.parametrize("tenant_id", ["tn_a", None])
async def test_another_flush_of_the_tenant_does_not_undo_that_it_is_due_again(
    tenant_id: str | None,
) -> None:
    store, now = MemoryStore(), ManualClock(1.0)
    flushing = Flushing(store, Fleet().set, now)
    await flushing.record("tn_a", again_s=5.0)
    now.advance(2.0)
    await flushing.flush(tenant_id)
    [second] = await told(store, now.now)
    now.advance(3.0)
    assert await told(store, now.now) == {f"{second}_again": tenant_id}
    await flushing.flush(tenant_id)
    [third] = await told(store, now.now)
    now.advance(60.0)
    assert await told(store, now.now) == {third: tenant_id}, "the control: it was not due again"


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
