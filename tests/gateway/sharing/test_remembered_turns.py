from __future__ import annotations

import msgspec

from gateway.config import Bounds
from gateway.prompts.verbatim_turns.turn_memory import TurnMemory
from gateway.sharing.remembered_turns import clean
from gateway.state.records import Tenant
from tests.gateway.prompts.verbatim_turns.test_turn_memory import turn
from tests.gateway.state.memory_store import MemoryStore
from tests.gateway.support.manual_clock import ManualClock
from tests.gateway.support.put_record import put


async def test_tenants_that_may_not_ask_are_forgotten() -> None:
    store, memory = MemoryStore(), TurnMemory(Bounds(), ManualClock())
    ada, bob = (Tenant(id=name, name=name, created_at=0.0) for name in ("ada", "bob"))
    for tenant in (ada, bob):
        await store.create(tenant)
        memory.add(tenant.id, b"a", turn())
    memory.add("deleted", b"a", turn())
    await clean(memory, store)
    assert memory.tenants() == {"ada", "bob"}
    await put(store, msgspec.structs.replace(bob, disabled=True))
    await clean(memory, store)
    assert memory.tenants() == {"ada"}


async def test_what_is_old_goes() -> None:
    clock = ManualClock()
    memory = TurnMemory(Bounds(turn_life_s=60.0), clock)
    memory.add("ada", b"a", turn())
    clock.advance(60)
    await clean(memory, MemoryStore())
    assert memory.size == 0
