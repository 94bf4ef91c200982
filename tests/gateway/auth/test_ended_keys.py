"""Keys are refused once they expire, are revoked or replaced, or their tenant is disabled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.auth.keyring import (
    IssuedKey,
    Keyring,
)
from gateway.caller import Caller
from gateway.errors import (
    Conflict,
    Forbidden,
    NotFound,
    Unauthenticated,
)
from gateway.state.records import ApiKey
from gateway.state.sqlite.store import SqliteStore
from tests.gateway.auth.keyrings import (
    ACME,
    PEPPER,
    Ring,
    opens,
    refusal,
)


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
    """Rotate again within the overlap, as an operator does whose first answer was lost."""
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


class TestOnSqlite:
    """Tests that need a real database file."""

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
        assert issued[0].record.digest in on_disk  # positive control of the scan
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
    """Return every run of eight characters of the key's random part; the hint may show fewer."""
    body = secret.removeprefix("sk-").encode()
    return [body[i : i + 8] for i in range(len(body) - 7)]
