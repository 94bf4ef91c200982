"""Identities are cached between lookups for a bounded time, also while the store is away."""

from __future__ import annotations

import asyncio

import pytest

from gateway.auth.keyring import IDENTITY_TTL_S, OUTAGE_TTL_S, RANDOM_BYTES, Keyring
from gateway.auth.ttl_cache import MAX_IDENTITIES
from gateway.errors import (
    Conflict,
    StateLost,
    Unavailable,
)
from gateway.state.records import Tenant
from tests.doubles.reachable import reachable
from tests.gateway.auth.keyrings import (
    ACME,
    PEPPER,
    AwayStore,
    LostStore,
    PausingStore,
    Ring,
    a_ring,
    opens,
    refusal,
)
from tests.gateway.support.manual_clock import ManualClock


async def test_a_known_key_is_looked_up_once_in_its_time(ring: Ring) -> None:
    issued = await ring.keyring.issue(ACME.id)
    for _ in range(100):
        await ring.keyring.identify(issued.secret)
    assert ring.store.lookups == 1
    ring.forget_by_time()
    await ring.keyring.identify(issued.secret)
    assert ring.store.lookups == 2


async def test_an_unknown_key_is_looked_up_once_in_its_time(ring: Ring) -> None:
    for _ in range(100):
        assert not await opens(ring.keyring, "sk-" + "a" * 43)
    assert ring.store.lookups == 1
    ring.forget_by_time()
    assert not await opens(ring.keyring, "sk-" + "a" * 43)
    assert ring.store.lookups == 2


async def test_a_change_by_another_process_is_seen_when_the_time_is_over(ring: Ring) -> None:
    issued = await ring.keyring.issue(ACME.id)
    assert await opens(ring.keyring, issued.secret)
    elsewhere = Keyring(ring.store, PEPPER, ring.clock)
    await elsewhere.revoke(issued.record.id)
    ring.forget_by_time()
    assert not await opens(ring.keyring, issued.secret)
    assert IDENTITY_TTL_S <= 5.0


async def test_a_flood_of_wrong_keys_neither_grows_nor_pushes_out_good_ones(ring: Ring) -> None:
    issued = await ring.keyring.issue(ACME.id)
    await ring.keyring.identify(issued.secret)
    for number in range(MAX_IDENTITIES + 500):
        assert not await opens(ring.keyring, f"sk-{number:043d}")
    lookups = ring.store.lookups
    assert await opens(ring.keyring, issued.secret)
    assert not await opens(ring.keyring, f"sk-{MAX_IDENTITIES + 499:043d}")
    assert ring.store.lookups == lookups
    # the cache holds too many keys, so it has forgotten the oldest
    assert not await opens(ring.keyring, f"sk-{0:043d}")
    assert ring.store.lookups == lookups + 1


async def test_nothing_in_memory_holds_a_key_in_clear(ring: Ring) -> None:
    issued = await ring.keyring.issue(ACME.id)
    await ring.keyring.identify(issued.secret)
    await opens(ring.keyring, "sk-" + "a" * 43)
    held = repr([one for one in reachable(ring) if isinstance(one, (str, bytes))])
    assert issued.record.id in held
    assert issued.secret not in held
    assert "a" * 43 not in held


async def test_a_lookup_under_way_does_not_outlive_a_revocation() -> None:
    store = PausingStore()
    ring = a_ring(store)
    issued = await ring.keyring.issue(ACME.id)
    early = asyncio.ensure_future(ring.keyring.identify(issued.secret))
    await store.found.wait()  # the store has answered "live", but the keyring has not received it
    await ring.keyring.revoke(issued.record.id)
    store.go.set()
    await early  # the lookup's answer precedes the revocation
    assert not await opens(ring.keyring, issued.secret)


async def test_a_lookup_under_way_is_remembered_when_nothing_changed() -> None:
    store = PausingStore()
    ring = a_ring(store)
    issued = await ring.keyring.issue(ACME.id)
    early = asyncio.ensure_future(ring.keyring.identify(issued.secret))
    await store.found.wait()
    store.go.set()
    await early
    assert await opens(ring.keyring, issued.secret)
    assert store.lookups == 1


async def test_a_lookup_under_way_does_not_outlive_news_that_may_have_been_missed() -> None:
    """Drop the result of a lookup that ran while the gateway did not listen: it may have missed a
    change.
    """
    store = PausingStore()
    ring = a_ring(store)
    issued = await ring.keyring.issue(ACME.id)
    early = asyncio.ensure_future(ring.keyring.identify(issued.secret))
    await store.found.wait()
    await Keyring(store, PEPPER, ring.clock).revoke(issued.record.id)  # another gateway's keyring
    ring.keyring.reload()
    store.go.set()
    await early
    assert not await opens(ring.keyring, issued.secret)


async def test_whoever_listens_anew_looks_wrong_keys_up_again_as_well(ring: Ring) -> None:
    """Look up wrong keys again after a pause in listening, since another gateway may have created
    them.
    """
    bits = bytes(range(RANDOM_BYTES))
    key = ring.keyring.key_with_mark(bits)
    assert not await opens(ring.keyring, key)
    elsewhere = Keyring(ring.store, PEPPER, ring.clock)
    assert (await elsewhere.issue(ACME.id, bits=bits)).secret == key
    assert not await opens(ring.keyring, key), "the control: it is remembered as wrong"
    ring.keyring.reload()
    assert await opens(ring.keyring, key)


async def test_while_the_store_is_away_known_keys_work_for_a_minute_and_no_others() -> None:
    store = AwayStore()
    ring = a_ring(store)
    known, never_used = await ring.keyring.issue(ACME.id), await ring.keyring.issue(ACME.id)
    assert await opens(ring.keyring, known.secret)
    store.away = True
    ring.forget_by_time()
    assert await opens(ring.keyring, known.secret)
    for unknown in (never_used.secret, "sk-" + "a" * 43):
        away = await refusal(ring.keyring, unknown)
        assert (away.status, away.retry_after_s) == (503, 1.0)
    ring.monotonic.advance(OUTAGE_TTL_S - IDENTITY_TTL_S - 0.1)
    assert await opens(ring.keyring, known.secret)
    ring.monotonic.advance(0.1)
    assert isinstance(await refusal(ring.keyring, known.secret), Unavailable)
    store.away = False
    assert await opens(ring.keyring, known.secret)
    assert await opens(ring.keyring, never_used.secret)


async def test_a_key_s_own_end_counts_while_the_store_is_away() -> None:
    store = AwayStore()
    ring = a_ring(store)
    issued = await ring.keyring.issue(ACME.id, expires_at=ring.clock.now + 20)
    assert await opens(ring.keyring, issued.secret)
    store.away = True
    ring.forget_by_time()
    ring.clock.advance(20)
    assert not await opens(ring.keyring, issued.secret)


@pytest.mark.parametrize("told", [True, False])
async def test_a_key_that_the_store_no_longer_knows_does_not_come_back(told: bool) -> None:
    store = AwayStore()
    ring = a_ring(store)
    issued = await ring.keyring.issue(ACME.id)
    assert await opens(ring.keyring, issued.secret)
    store.keys.clear()
    if told:
        ring.keyring.forget(ACME.id)
    else:
        ring.forget_by_time()
        assert not await opens(ring.keyring, issued.secret)
        ring.forget_by_time()
    store.away = True
    assert isinstance(await refusal(ring.keyring, issued.secret), Unavailable)


async def test_a_change_drops_the_cached_keys_of_that_tenant_alone(ring: Ring) -> None:
    other = Tenant(id="tn_other", name="other", created_at=2.0)
    ring.store.tenants[other.id] = other
    ours, theirs = await ring.keyring.issue(ACME.id), await ring.keyring.issue(other.id)
    for issued in (ours, theirs):
        assert await opens(ring.keyring, issued.secret)
    ring.store.keys.clear()
    ring.keyring.forget(ACME.id)
    assert not await opens(ring.keyring, ours.secret)
    assert await opens(ring.keyring, theirs.secret)
    ring.keyring.reload()
    assert not await opens(ring.keyring, theirs.secret)


async def test_a_new_key_works_where_it_was_tried_before(ring: Ring) -> None:
    elsewhere = Keyring(ring.store, PEPPER, ring.clock, monotonic=ring.monotonic)
    issued = await ring.keyring.issue(ACME.id, bits=bytes(RANDOM_BYTES))
    del ring.store.keys[issued.record.id]
    assert not await opens(elsewhere, issued.secret)
    ring.store.keys[issued.record.id] = issued.record
    assert not await opens(elsewhere, issued.secret)
    elsewhere.forget(ACME.id)
    assert await opens(elsewhere, issued.secret)


async def test_given_bits_make_one_key_and_no_second(ring: Ring) -> None:
    issued = await ring.keyring.issue(ACME.id, bits=bytes(range(RANDOM_BYTES)))
    assert await opens(ring.keyring, issued.secret)
    with pytest.raises(Conflict):
        await ring.keyring.issue(ACME.id, bits=bytes(range(RANDOM_BYTES)))


async def test_of_a_state_that_was_lost_nothing_is_remembered() -> None:
    store, clock = LostStore(), ManualClock()
    await store.create(ACME)
    keyring = Keyring(store, PEPPER, clock, monotonic=clock)
    issued = await keyring.issue(ACME.id)
    await keyring.identify(issued.secret)
    clock.advance(IDENTITY_TTL_S)
    store.away = True
    await keyring.identify(issued.secret)  # positive control: an outage loses no data
    store.lost = True
    with pytest.raises(StateLost):
        await keyring.identify(issued.secret)
    store.lost = False
    with pytest.raises(Unavailable):  # the identities cached before the loss are refused too
        await keyring.identify(issued.secret)
    store.away = False
    await keyring.identify(issued.secret)
