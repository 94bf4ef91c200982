"""Keys are random, identify their tenant, and are not delayed by floods of made-up keys."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re

import pytest

from gateway.auth.keyring import (
    KEY_BYTES,
    REFUSED,
    STRANGE_AT_ONCE,
    Keyring,
    key_of,
)
from gateway.caller import Caller
from gateway.errors import (
    GatewayError,
    NotFound,
    Unauthenticated,
)
from tests.gateway.auth.keyrings import (
    ACME,
    PEPPER,
    PausingStore,
    Ring,
    SlowStore,
    a_ring,
    opens,
    refusal,
)
from tests.gateway.auth.unmarked_key import issue_unmarked


async def test_a_key_is_sk_and_256_random_bits(ring: Ring) -> None:
    issued = [(await ring.keyring.issue(ACME.id)).secret for _ in range(100)]
    assert all(re.fullmatch(r"sk-[A-Za-z0-9_-]{43}", secret) for secret in issued)
    assert len(set(issued)) == 100


async def test_a_good_key_names_its_tenant(ring: Ring) -> None:
    issued = await ring.keyring.issue(ACME.id)
    caller = await ring.keyring.identify(issued.secret)
    assert caller == Caller("tn_acme", issued.record.id, 2.0)


async def test_the_record_holds_the_hmac_and_a_hint(ring: Ring) -> None:
    issued = await ring.keyring.issue(ACME.id, expires_at=2e6)
    digest = hmac.new(PEPPER, issued.secret.encode(), hashlib.sha256).digest()
    assert issued.record == ring.store.keys[issued.record.id]
    assert issued.record.digest == digest == ring.keyring.digest(issued.secret)
    assert issued.record.expires_at == 2e6
    assert issued.record.created_at == ring.clock.now
    hint = issued.record.hint
    assert hint == f"{issued.secret[:7]}...{issued.secret[-4:]}"
    assert len(hint.replace("sk-", "").replace(".", "")) == 8  # 208 bits of the key stay secret


async def test_another_pepper_knows_no_key(ring: Ring) -> None:
    issued = await ring.keyring.issue(ACME.id)
    other = Keyring(ring.store, b"other".ljust(32, b"."), ring.clock)
    assert not await opens(other, issued.secret)
    assert await opens(ring.keyring, issued.secret)


async def test_nothing_that_prints_an_issued_key_shows_it(ring: Ring) -> None:
    issued = await ring.keyring.issue(ACME.id)
    assert issued.secret not in repr(issued) + str(issued) + f"{issued}" + repr(issued.record)


async def test_no_key_for_a_missing_tenant(ring: Ring) -> None:
    with pytest.raises(NotFound):
        await ring.keyring.issue("tn_none")
    assert ring.store.keys == {}


@pytest.mark.parametrize(
    "key",
    [
        "",
        "sk-",
        "sk-" + "a" * 42,
        "sk-" + "a" * 44,
        "SK-" + "a" * 43,
        "sk-" + "a" * 42 + "=",
        "sk-" + "a" * 43 + "\n",
        "\nsk-" + "a" * 43,
        "sk-" + "é" * 43,
        "sk-" + "٣" * 43,
        "sk-' OR 1=1; --" + "a" * 30,
        "sk-" + "a" * 1_000_000,
        "\ud800",
    ],
    ids=range(13),
)
async def test_a_malformed_key_is_refused_before_any_lookup(ring: Ring, key: str) -> None:
    assert isinstance(await refusal(ring.keyring, key), Unauthenticated)
    assert ring.store.lookups == 0
    await refusal(ring.keyring, "sk-" + "a" * 43)
    assert ring.store.lookups == 1


async def test_keys_that_are_made_up_keep_no_issued_key_waiting() -> None:
    store = SlowStore()
    ring = a_ring(store)
    elsewhere = Keyring(store, PEPPER, ring.clock)
    new, used, unused = (
        await elsewhere.issue(ACME.id),
        *[await issue_unmarked(store, PEPPER, ACME.id) for _ in range(2)],
    )
    await ring.keyring.identify(used)
    made_up = [
        asyncio.create_task(refusal(ring.keyring, key_of(bytes([number]) * KEY_BYTES)))
        for number in range(100)
    ]
    for _ in range(10):
        await asyncio.sleep(0)
    assert store.waiting == STRANGE_AT_ONCE
    assert (await ring.keyring.identify(new.secret)).key_id == new.record.id
    ring.monotonic.advance(24 * 3600.0)
    await ring.keyring.identify(used)
    first = asyncio.create_task(ring.keyring.identify(unused))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not first.done(), "the control: it could be made up, too"
    store.go.set()
    assert (await first).tenant_id == ACME.id
    assert {type(one) for one in await asyncio.gather(*made_up)} == {Unauthenticated}


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def flood(ring: Ring) -> list[asyncio.Task[GatewayError]]:
    """Look up made-up keys until all slots for unknown keys are taken."""
    return [
        asyncio.create_task(refusal(ring.keyring, key_of(bytes([number]) * KEY_BYTES)))
        for number in range(2 * STRANGE_AT_ONCE)
    ]


async def test_an_old_key_that_was_found_during_a_change_waits_with_no_stranger() -> None:
    store = PausingStore()
    ring = a_ring(store)
    old = await issue_unmarked(store, PEPPER, ACME.id)
    first = asyncio.create_task(ring.keyring.identify(old))
    await store.found.wait()
    # The lookup began before the reload and may be outdated, so its result is not cached.
    ring.keyring.reload()
    store.go.set()
    await first
    store.go.clear()
    made_up = flood(ring)
    await turns()
    assert store.lookups == 1 + STRANGE_AT_ONCE
    again = asyncio.create_task(ring.keyring.identify(old))
    await turns()
    assert store.lookups == 2 + STRANGE_AT_ONCE, "it is looked up at once"
    store.go.set()
    assert (await again).tenant_id == ACME.id
    await asyncio.gather(*made_up)


async def test_of_requests_that_wait_with_one_key_the_first_lookup_serves_all() -> None:
    store = SlowStore()
    ring = a_ring(store)
    old = await issue_unmarked(store, PEPPER, ACME.id)
    made_up = flood(ring)
    waiting = [asyncio.create_task(ring.keyring.identify(old)) for _ in range(20)]
    await turns()
    assert not any(one.done() for one in waiting), "the control: nobody has seen this key"
    store.go.set()
    assert {one.tenant_id for one in await asyncio.gather(*waiting)} == {ACME.id}
    await asyncio.gather(*made_up)
    assert store.lookups == len(made_up) + 1


async def test_only_the_issuer_s_pepper_makes_the_mark(ring: Ring) -> None:
    issued = (await ring.keyring.issue(ACME.id)).secret
    other = Keyring(ring.store, b"other".ljust(32, b"."), ring.clock)
    assert ring.keyring.read(issued).is_marked
    assert not other.read(issued).is_marked
    for at in range(len("sk-"), len(issued)):
        # differs from the original also in the bits that a key's last letter encodes
        changed = "A" if issued[at] != "A" else "E"
        assert not ring.keyring.read(issued[:at] + changed + issued[at + 1 :]).is_marked


async def test_every_refusal_reads_the_same(ring: Ring) -> None:
    revoked = await ring.keyring.issue(ACME.id)
    await ring.keyring.revoke(revoked.record.id)
    expired = await ring.keyring.issue(ACME.id, expires_at=ring.clock.now)
    keys = ["", "nonsense", "sk-" + "a" * 43, revoked.secret, expired.secret]
    errors = [await refusal(ring.keyring, key) for key in keys]
    assert {(type(e), e.status, e.code, e.message, e.param) for e in errors} == {
        (Unauthenticated, 401, "invalid_api_key", REFUSED, None)
    }
