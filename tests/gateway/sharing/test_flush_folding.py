"""An engine forgets flushed blocks however long it was unreachable; the number of records stays
bounded.
"""

from __future__ import annotations

from random import Random

from engine.queries.done_flushes import DoneFlushes, Dropped
from gateway.replicas.flushes import FlushReader
from gateway.sharing.flush_folding import APART_S, KEPT_S, MOST_KEPT, folding
from gateway.sharing.flushing import Flushing
from gateway.state.records import CacheFlush, Tenant
from tests.gateway.replicas.rig import Fleet
from tests.gateway.state.memory_store import MemoryStore

DAY = 86_400.0
HOUR = 3_600.0


def flush(tenant: str | None, at: float) -> CacheFlush:
    return CacheFlush(id=f"fl_{tenant}_{at:g}", tenant_id=tenant, at=at)


def test_old_ones_of_deleted_tenants_become_one_of_everything_with_an_id_that_is_known() -> None:
    now = 100 * DAY
    old = [flush("a", 1 * DAY), flush("lives", 2 * DAY), flush("b", 3 * DAY), flush("c", 4 * DAY)]
    young = [flush("d", 99 * DAY)]
    found = folding([*old, *young], {"lives"}, now)
    assert found is not None
    assert (found.into.id, found.into.tenant_id) == (old[-1].id, None)
    assert [*found.tenant_ids] == ["a", "b", "c"]
    assert folding([*old, *young], {"lives"}, 20 * DAY) is None, "none is old"
    assert folding(old[2:], {"c"}, now) is None, "one alone is kept as it is"


def test_what_an_engine_may_not_have_been_told_with_the_last_one_stays() -> None:
    soon = [flush("a", 1 * DAY), flush("b", 1 * DAY + 1)]
    assert folding(soon, (), 100 * DAY) is None
    assert folding([*soon, flush("c", 1 * DAY + APART_S + 1)], (), 100 * DAY) is not None
    everything = [flush(None, 2 * DAY), flush("a", 2 * DAY + 1), flush("b", 2 * DAY + 2)]
    assert folding(everything, (), 100 * DAY) is None


def test_of_very_many_the_oldest_go_sooner() -> None:
    many = [flush(f"t{number}", number * HOUR / 100) for number in range(MOST_KEPT + 500)]
    found = folding(many, (), many[-1].at)
    assert found is not None
    assert len(many) - len(found.tenant_ids) < len(many) - 300
    assert folding(many[:MOST_KEPT], (), many[-1].at) is None


class Away:
    """An engine with a disk: its blocks by owner and time, and the flushes that it has done."""

    def __init__(self) -> None:
        self.blocks = dict[str, float]()
        self.done = DoneFlushes()
        self.is_here = True

    def told(self, recorded: list[CacheFlush]) -> None:
        flushes = {one.id: one.tenant_id for one in recorded}
        for flush_id, tenant in self.done.due(flushes).items():
            if tenant is None:
                self.blocks.clear()
            else:
                self.blocks.pop(tenant, None)
            self.done.note(flush_id, Dropped())


async def test_engines_that_come_and_go_have_nothing_that_was_flushed() -> None:
    draws, store, engines = Random(5), MemoryStore(), [Away() for _ in range(4)]
    flushed, most, told, kept = dict[str, float](), 0, 0, 0
    for turn in range(3000):
        now, tenant = turn * 4 * HOUR, f"tn_{turn // 3}"
        for engine in engines:
            if draws.random() < (0.02 if engine.is_here else 0.004):
                engine.is_here = not engine.is_here
            if engine.is_here:
                engine.told(await store.flushes())
                told, kept = told + 1, kept + ("lives" in engine.blocks)
                engine.blocks |= {tenant: now, "lives": now}
                assert all(flushed.get(one, -1.0) < at for one, at in engine.blocks.items())
        if turn % 3 == 2:  # the tenant is deleted in this round
            await store.add_flush(flush(tenant, now))
            flushed[tenant] = now
            found = folding(await store.flushes(), {"lives"}, now)
            if found is not None:
                await store.fold_flushes(*found)
            most = max(most, len(await store.flushes()))
    assert most <= KEPT_S / (12 * HOUR) + 3, "and not the thousand that there were"
    assert kept > 0.95 * told, "the control: others' blocks stay"


async def test_a_flush_folds_what_is_old() -> None:
    store, times = MemoryStore(), [1.0, 1.0 + DAY, 100 * DAY]
    await store.create(Tenant(id="tn_lives", name="lives", created_at=0.0))
    flushing = Flushing(store, Fleet().set, lambda: times[0], FlushReader())
    for tenant in ("tn_a", "tn_b", "tn_lives"):
        await flushing.flush(tenant)
        times[:2] = times[1:] if len(times) > 1 else times
    recorded = await store.flushes()
    assert [one.tenant_id for one in recorded] == [None, "tn_lives"]
