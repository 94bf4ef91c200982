from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.auth.keyring import (
    IDENTITY_TTL_S,
    KEY_BYTES,
    MAX_IDENTITIES,
    OUTAGE_TTL_S,
    RANDOM_BYTES,
    REFUSED,
    STRANGE_AT_ONCE,
    IssuedKey,
    Keyring,
    key_of,
)
from gateway.caller import Caller
from gateway.errors import (
    Conflict,
    Forbidden,
    GatewayError,
    NotFound,
    StateLost,
    Unauthenticated,
    Unavailable,
)
from gateway.state.records import ApiKey, Tenant
from gateway.state.sqlite.store import SqliteStore
from tests.doubles.reachable import reachable
from tests.gateway.auth.unmarked_key import issue_unmarked
from tests.gateway.state.memory_store import MemoryStore
from tests.gateway.support.manual_clock import ManualClock

PEPPER = b"pepper".ljust(32, b".")
ACME = Tenant(id="tn_acme", name="acme", created_at=1.0, weight=2.0)


class AwayStore(MemoryStore):
    """Refuses to find keys while it is away."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False

    async def find_by_digest(self, digest: bytes) -> tuple[ApiKey, Tenant] | None:
        if self.away:
            raise Unavailable("away", retry_after_s=1.0)
        return await super().find_by_digest(digest)


class LostStore(AwayStore):
    """Has lost its state when `lost` says so."""

    lost = False

    async def find_by_digest(self, digest: bytes) -> tuple[ApiKey, Tenant] | None:
        if self.lost:
            raise StateLost("state_damaged")
        return await super().find_by_digest(digest)


class PausingStore(MemoryStore):
    """Finds a key at once, but answers only when the test says `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.found = asyncio.Event()
        self.go = asyncio.Event()

    async def find_by_digest(self, digest: bytes) -> tuple[ApiKey, Tenant] | None:
        answer = await super().find_by_digest(digest)
        self.found.set()
        await self.go.wait()
        return answer


class SlowStore(MemoryStore):
    """Answers of keys that there are at once, and of others when the test says `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = 0
        self.go = asyncio.Event()

    async def find_by_digest(self, digest: bytes) -> tuple[ApiKey, Tenant] | None:
        found = await super().find_by_digest(digest)
        if found is None:
            self.waiting += 1
            await self.go.wait()
            self.waiting -= 1
        return found


@dataclass
class Ring:
    """A keyring over the plain store, its clocks in hand. The tenant `acme` exists."""

    store: MemoryStore
    clock: ManualClock
    monotonic: ManualClock
    keyring: Keyring

    def forget_by_time(self) -> None:
        self.monotonic.advance(IDENTITY_TTL_S)


def a_ring(store: MemoryStore | None = None) -> Ring:
    store = store or MemoryStore()
    store.tenants[ACME.id] = ACME
    clock, monotonic = ManualClock(), ManualClock(50.0)
    return Ring(store, clock, monotonic, Keyring(store, PEPPER, clock, monotonic=monotonic))


@pytest.fixture
def ring() -> Ring:
    return a_ring()


async def refusal(keyring: Keyring, key: str) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        await keyring.identify(key)
    return caught.value


async def opens(keyring: Keyring, key: str) -> bool:
    try:
        await keyring.identify(key)
    except Unauthenticated:
        return False
    return True


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
    assert len(hint.replace("sk-", "").replace(".", "")) == 8  # 208 bits stay unknown


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
    """Keys that are made up, whose lookups take all places of strangers."""
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
    ring.keyring.reload()  # what was found is not kept: it may be older than the change
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
        changed = "A" if issued[at] != "A" else "E"  # bits that the last letter has, too
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


async def test_a_key_expires_to_the_second_although_it_is_remembered(ring: Ring) -> None:
    issued = await ring.keyring.issue(ACME.id, expires_at=ring.clock.now + 2)
    assert await opens(ring.keyring, issued.secret)
    ring.clock.advance(1.999)
    assert await opens(ring.keyring, issued.secret)
    ring.clock.advance(0.001)
    assert not await opens(ring.keyring, issued.secret)
    assert ring.store.lookups == 1


async def test_revoking_works_at_once_and_for_that_key_alone(ring: Ring) -> None:
    one, two = await ring.keyring.issue(ACME.id), await ring.keyring.issue(ACME.id)
    assert await opens(ring.keyring, one.secret)
    assert await opens(ring.keyring, two.secret)
    await ring.keyring.revoke(one.record.id)
    assert not await opens(ring.keyring, one.secret)
    assert await opens(ring.keyring, two.secret)


async def test_revoking_twice_keeps_the_first_time(ring: Ring) -> None:
    issued = await ring.keyring.issue(ACME.id)
    await ring.keyring.revoke(issued.record.id)
    first = ring.clock.now
    ring.clock.advance(10)
    await ring.keyring.revoke(issued.record.id)
    assert ring.store.keys[issued.record.id].revoked_at == first


async def test_a_missing_key_can_be_neither_revoked_nor_rotated(ring: Ring) -> None:
    with pytest.raises(NotFound):
        await ring.keyring.revoke("key_none")
    with pytest.raises(NotFound):
        await ring.keyring.rotate("key_none", overlap_s=0)


async def test_rotation_without_overlap_ends_the_old_key_at_once(ring: Ring) -> None:
    old = await ring.keyring.issue(ACME.id)
    assert await opens(ring.keyring, old.secret)
    new = await ring.keyring.rotate(old.record.id, overlap_s=0)
    assert new.secret != old.secret
    assert not await opens(ring.keyring, old.secret)
    assert await opens(ring.keyring, new.secret)


async def test_during_the_overlap_both_keys_work(ring: Ring) -> None:
    old = await ring.keyring.issue(ACME.id)
    new = await ring.keyring.rotate(old.record.id, overlap_s=60)
    for elapsed, old_opens in ((0, True), (59.9, True), (0.1, False), (1e9, False)):
        ring.clock.advance(elapsed)
        assert await opens(ring.keyring, old.secret) is old_opens
        assert await opens(ring.keyring, new.secret)


async def test_an_overlap_never_prolongs_the_old_key(ring: Ring) -> None:
    old = await ring.keyring.issue(ACME.id, expires_at=ring.clock.now + 30)
    await ring.keyring.rotate(old.record.id, overlap_s=60)
    assert ring.store.keys[old.record.id].ends_at == ring.clock.now + 30
    shortened = await ring.keyring.issue(ACME.id)
    for overlap_s in (20, 60):
        await ring.keyring.rotate(shortened.record.id, overlap_s=overlap_s)
        assert ring.store.keys[shortened.record.id].ends_at == ring.clock.now + 20


async def test_the_successor_lives_as_long_as_the_old_key_did(ring: Ring) -> None:
    old = await ring.keyring.issue(ACME.id, expires_at=ring.clock.now + 100)
    ring.clock.advance(90)
    new = await ring.keyring.rotate(old.record.id, overlap_s=5)
    assert new.record.expires_at == ring.clock.now + 100
    forever = await ring.keyring.issue(ACME.id)
    assert (await ring.keyring.rotate(forever.record.id, overlap_s=5)).record.expires_at is None


async def test_rotated_again_during_its_overlap_a_key_still_has_a_full_successor(
    ring: Ring,
) -> None:
    """An operator rotates again if the first answer was lost."""
    forever = await ring.keyring.issue(ACME.id)
    hundred = await ring.keyring.issue(ACME.id, expires_at=ring.clock.now + 100)
    await ring.keyring.rotate(forever.record.id, overlap_s=10)
    await ring.keyring.rotate(hundred.record.id, overlap_s=10)
    ring.clock.advance(5)
    assert (await ring.keyring.rotate(forever.record.id, overlap_s=10)).record.ends_at is None
    second = await ring.keyring.rotate(hundred.record.id, overlap_s=10)
    assert second.record.ends_at == ring.clock.now + 100


async def test_a_dead_key_cannot_be_rotated_into_a_live_one(ring: Ring) -> None:
    revoked = await ring.keyring.issue(ACME.id)
    await ring.keyring.revoke(revoked.record.id)
    expired = await ring.keyring.issue(ACME.id, expires_at=ring.clock.now)
    for dead in (revoked, expired):
        with pytest.raises(Conflict):
            await ring.keyring.rotate(dead.record.id, overlap_s=60)
    assert len(ring.store.keys) == 2


async def test_a_disabled_tenant_is_forbidden_by_its_good_keys_only(ring: Ring) -> None:
    good, revoked = await ring.keyring.issue(ACME.id), await ring.keyring.issue(ACME.id)
    await ring.keyring.revoke(revoked.record.id)
    ring.store.tenants[ACME.id] = replace(ACME, disabled=True)
    forbidden = await refusal(ring.keyring, good.secret)
    assert isinstance(forbidden, Forbidden)
    assert (forbidden.status, forbidden.code) == (403, "tenant_disabled")
    assert isinstance(await refusal(ring.keyring, revoked.secret), Unauthenticated)
    ring.store.tenants[ACME.id] = ACME
    ring.keyring.reload()
    assert await opens(ring.keyring, good.secret)


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
    assert not await opens(ring.keyring, f"sk-{0:043d}")  # so many are not remembered
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
    await store.found.wait()  # the store has said "live", the keyring has not heard it yet
    await ring.keyring.revoke(issued.record.id)
    store.go.set()
    await early  # it came before the revocation
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
    """Nobody knows what was changed while nobody listened: the answer may be from before it."""
    store = PausingStore()
    ring = a_ring(store)
    issued = await ring.keyring.issue(ACME.id)
    early = asyncio.ensure_future(ring.keyring.identify(issued.secret))
    await store.found.wait()
    await Keyring(store, PEPPER, ring.clock).revoke(issued.record.id)  # another gateway
    ring.keyring.reload()
    store.go.set()
    await early
    assert not await opens(ring.keyring, issued.secret)


async def test_whoever_listens_anew_looks_wrong_keys_up_again_as_well(ring: Ring) -> None:
    """The key may have been made elsewhere while nobody listened."""
    bits = bytes(range(RANDOM_BYTES))
    key = ring.keyring.key_with_mark(bits)
    assert not await opens(ring.keyring, key)
    elsewhere = Keyring(ring.store, PEPPER, ring.clock)
    assert (await elsewhere.issue(ACME.id, bits=bits)).secret == key
    assert not await opens(ring.keyring, key), "the control: it is remembered as wrong"
    ring.keyring.reload()
    assert await opens(ring.keyring, key)


class TestOnSqlite:
    """Tests that need a real file."""

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[SqliteStore]:
        store = SqliteStore(tmp_path / "state.sqlite")
        await store.create(ACME)
        yield store
        await store.close()

    async def test_no_part_of_a_key_is_in_any_file(
        self, store: SqliteStore, tmp_path: Path
    ) -> None:
        keyring = Keyring(store, PEPPER)
        issued = [await keyring.issue(ACME.id) for _ in range(20)]
        issued.append(await keyring.rotate(issued[0].record.id, overlap_s=60))
        await keyring.revoke(issued[1].record.id)
        for key in issued:
            await opens(keyring, key.secret)
        on_disk = b"".join(file.read_bytes() for file in tmp_path.iterdir())
        assert issued[0].record.digest in on_disk  # the positive control of the scan
        assert issued[0].record.hint.encode() in on_disk
        for key in issued:
            assert all(part not in on_disk for part in parts_of(key.secret))

    async def test_fifty_issue_and_identify_at_once(self, store: SqliteStore) -> None:
        keyring = Keyring(store, PEPPER)

        async def one() -> tuple[IssuedKey, Caller]:
            issued = await keyring.issue(ACME.id)
            return issued, await keyring.identify(issued.secret)

        results = await asyncio.gather(*(one() for _ in range(50)))
        assert all(caller.key_id == issued.record.id for issued, caller in results)
        assert len({issued.secret for issued, _ in results}) == 50
        assert len(await store.list_keys(ACME.id)) == 50

    async def test_of_rotation_and_revocation_at_once_the_old_key_stays_dead(
        self, store: SqliteStore
    ) -> None:
        keyring = Keyring(store, PEPPER)
        for _ in range(10):
            issued = await keyring.issue(ACME.id)
            await asyncio.gather(
                keyring.rotate(issued.record.id, overlap_s=60),
                keyring.revoke(issued.record.id),
                return_exceptions=True,
            )
            assert not await opens(keyring, issued.secret)
            assert (await store.get(ApiKey, issued.record.id)).revoked_at is not None

    async def test_of_two_rotations_at_once_the_shorter_overlap_counts(
        self, store: SqliteStore
    ) -> None:
        keyring = Keyring(store, PEPPER)
        for overlaps in ([0, 3600], [3600, 0]):
            issued = await keyring.issue(ACME.id)
            await asyncio.gather(
                *(keyring.rotate(issued.record.id, overlap_s=overlap) for overlap in overlaps),
                return_exceptions=True,
            )
            assert not await opens(keyring, issued.secret)
        longer = await keyring.issue(ACME.id)
        await keyring.rotate(longer.record.id, overlap_s=3600)
        assert await opens(keyring, longer.secret), "the control"


def parts_of(secret: str) -> list[bytes]:
    """Every run of eight characters of the random part: more than the hint may show."""
    body = secret.removeprefix("sk-").encode()
    return [body[i : i + 8] for i in range(len(body) - 7)]


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
    await keyring.identify(issued.secret)  # the control: away is not lost
    store.lost = True
    with pytest.raises(StateLost):
        await keyring.identify(issued.secret)
    store.lost = False
    with pytest.raises(Unavailable):  # not from before either
        await keyring.identify(issued.secret)
    store.away = False
    await keyring.identify(issued.secret)
