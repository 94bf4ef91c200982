"""A receipt lists what each engine has erased, and what is still pending."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from engine.link.erasure import Erasure, TierErasure
from gateway.auth.running_requests import GROUP_KNOWN_S
from gateway.errors import NotFound
from gateway.receipts.erasing import Erasing
from gateway.receipts.receipt import Receipt
from gateway.receipts.signing import ReceiptKey
from gateway.replicas.flushes import FlushReader
from gateway.sharing.flushing import Flushing
from gateway.state.records import ErasedTenant
from tests.gateway.replicas.rig import Fleet
from tests.gateway.state.memory_store import MemoryStore
from tests.gateway.support.manual_clock import ManualClock

OVER = Erasure(
    tiers=(TierErasure(tier="device", blocks=2, num_bytes=128),), running=0, disk="key destroyed"
)
NOTHING = replace(OVER, tiers=(TierErasure(tier="device", blocks=0),))
OF = ErasedTenant(id="tn_a", name="acme", keys=2, responses=3)


class Rig:
    def __init__(self) -> None:
        self.fleet, self.store, self.clock = Fleet(), MemoryStore(), ManualClock(1000.0)
        for engine in self.fleet.replicas:
            engine.erasure = OVER
        self.flushing = Flushing(self.store, self.fleet.set, self.clock, FlushReader(self.clock))
        self.erasing = Erasing(self.flushing, lambda: ReceiptKey(bytes(32)), self.clock)

    async def receipt(self) -> Receipt:
        return (await self.erasing.receipt("tn_a", "operator", 0.0)).receipt


async def test_it_is_complete_once_all_gateways_know_and_all_engines_are_done() -> None:
    rig = Rig()
    await rig.erasing.erase(await rig.erasing.record(OF))
    early = await rig.receipt()
    assert early.open == (
        "what gateways may have admitted before they knew: erased some seconds later",
    )
    assert {name: one.disk for name, one in early.engines.items()} == dict.fromkeys(
        "abc", OVER.disk
    )
    rig.clock.advance(GROUP_KNOWN_S)
    late = await rig.receipt()
    assert late.is_complete
    assert (late.tenant, late.name, late.keys, late.responses) == ("tn_a", "acme", 2, 3)
    [tier] = late.engines["a"].tiers or ()
    assert tier.blocks == 6, "of all three flushes"


async def test_blocks_that_were_dropped_before_the_deletion_was_over_are_counted() -> None:
    """Gateways that hear of the first flush at once pass it on to engines, which count by flush."""
    rig = Rig()
    recorded = await rig.erasing.record(OF)
    for engine in rig.fleet.replicas:
        engine.erasure, engine.erasures = NOTHING, {recorded.id: OVER}
    await rig.erasing.erase(recorded)
    for seconds in (0.0, GROUP_KNOWN_S):
        rig.clock.advance(seconds)
        [tier] = (await rig.receipt()).engines["a"].tiers or ()
        assert (tier.blocks, tier.num_bytes) == (2, 128)


@pytest.mark.parametrize("last", ["first", "second"])
async def test_two_deletions_of_a_tenant_together_are_one_erasure(last: str) -> None:
    """The second deletion finds no tenant, but its flush has replaced the first deletion's flush.

    A gateway that hears of the second flush passes it on to engines.
    """
    rig = Rig()
    first = await rig.erasing.record(OF)
    if last == "first":
        second = await rig.erasing.record(OF)
        await rig.erasing.erase(first)
    else:
        await rig.erasing.erase(first)
        second = await rig.erasing.record(OF)
    for dropped in (first, second):
        for engine in rig.fleet.replicas:
            engine.erasure, engine.erasures = NOTHING, {dropped.id: OVER}
        [tier] = (await rig.receipt()).engines["a"].tiers or ()
        assert (tier.blocks, tier.num_bytes) == (2, 128)


async def test_a_change_during_a_deletion_does_not_end_the_erasure() -> None:
    rig = Rig()
    await rig.erasing.erase(await rig.erasing.record(OF))
    await rig.flushing.record("tn_b")
    await rig.flushing.record("tn_a")  # a change of the group that began before the deletion
    assert (await rig.receipt()).keys == OF.keys
    await rig.flushing.record(None)
    with pytest.raises(NotFound):  # the control: after a flush of everything nothing is left
        await rig.receipt()


async def test_the_time_until_all_gateways_know_runs_from_the_end_of_the_deletion() -> None:
    rig = Rig()
    recorded = await rig.erasing.record(OF)
    await rig.flushing.recorded()  # every gateway reads this record
    # after this time the tenant's responses are deleted from the state
    rig.clock.advance(GROUP_KNOWN_S)
    assert (await rig.receipt()).is_complete, "the control"
    await rig.erasing.erase(recorded)
    assert not (await rig.receipt()).is_complete
    rig.clock.advance(GROUP_KNOWN_S)
    assert (await rig.receipt()).is_complete


async def test_what_is_open_is_named() -> None:
    rig = Rig()
    await rig.erasing.erase(await rig.erasing.record(OF))
    rig.clock.advance(GROUP_KNOWN_S)
    rig.fleet["a"].erasure = replace(OVER, running=2, disk="under way")
    rig.fleet["b"].erasure = None
    rig.fleet["c"].die()
    await rig.flushing.recorded()
    rig.clock.advance(GROUP_KNOWN_S)
    found = await rig.receipt()
    assert found.awaited == ("c",)
    assert found.open == (
        "engine c is away: it erases when it is back, before it serves",
        "engine b is of a release that does not tell what it erases",
        "engine a: 2 requests still end",
        "engine a: records on its disk",
    )
    for engine in rig.fleet.replicas:
        engine.erasure = OVER
    rig.fleet["c"].come()
    assert (await rig.receipt()).is_complete, "the control"


async def test_without_an_engine_all_are_awaited() -> None:
    rig = Rig()
    for engine in rig.fleet.replicas:
        engine.die()
    await rig.erasing.erase(await rig.erasing.record(OF))
    rig.clock.advance(GROUP_KNOWN_S)
    found = await rig.receipt()
    assert found.awaited == ("a", "b", "c")
    assert len(found.open) == 3


async def test_a_tenant_that_was_not_deleted_has_no_receipt() -> None:
    rig = Rig()
    await rig.erasing.drop("tn_a", again=True)  # the lost disk was disabled
    for tenant in ("tn_a", "tn_b"):
        with pytest.raises(NotFound):
            await rig.erasing.receipt(tenant, "operator", 0.0)


async def test_a_receipt_waits_for_the_end() -> None:
    rig = Rig()
    await rig.flushing.flush("tn_a", erased=OF)
    rig.fleet["a"].erasure = replace(OVER, disk="under way")
    looks = 0

    def clock() -> float:
        nonlocal looks
        looks += 1
        if looks == 2:  # the flush is still running at the second poll
            rig.fleet["a"].erasure = OVER
        return 2000.0

    erasing = Erasing(rig.flushing, lambda: ReceiptKey(bytes(32)), clock)
    assert (await erasing.receipt("tn_a", "operator", 20.0)).receipt.is_complete
    assert looks == 3
