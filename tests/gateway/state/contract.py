"""What every home of the state promises. A home's test module subclasses `StoreContract` and
provides the `store` fixture; pytest runs every test below against it.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.errors import Conflict, NotFound
from gateway.state.records import (
    EVERYONE,
    ApiKey,
    AuditEntry,
    Counters,
    Group,
    PrefixSource,
    PublishedPrefix,
    Tenant,
    UsageRow,
)
from gateway.state.store import Store
from tests.gateway.state.memory_store import MemoryStore

HOSTILE = [
    "'; DROP TABLE tenants; --",
    '" OR ""="',
    "%",
    "a\x00b",
    "日本語 🌱",
    "x" * 10_000,
    ":id",
    "?",
    "key:*\r\n",
]


def a_tenant(name: str = "acme", at: float = 1.0) -> Tenant:
    return Tenant(id=f"tn_{name}", name=name, created_at=at)


def a_key(tenant: Tenant, number: int = 1) -> ApiKey:
    return ApiKey(
        id=f"key_{tenant.name}_{number}",
        tenant_id=tenant.id,
        digest=f"{tenant.name}/{number}".encode().ljust(32, b"."),
        hint="sk-abcd...wxyz",
        created_at=float(number),
    )


def a_group(name: str = "friends", at: float = 1.0) -> Group:
    return Group(id=f"gr_{name}", name=name, created_at=at)


def a_prefix(name: str = "rules", version: int = 1, scope: str = EVERYONE) -> PublishedPrefix:
    return PublishedPrefix(
        id=f"px_{name}_{version}",
        name=name,
        version=version,
        scope=scope,
        source=PrefixSource(messages=[{"role": "system", "content": f"Rules of {name}: é 🌱"}]),
        created_at=float(version),
    )


def a_row(day: str = "2026-01-31", tenant: str = "tn_a", key: str = "key_1", **n: int) -> UsageRow:
    return UsageRow(day=day, tenant_id=tenant, key_id=key, counters=Counters(**n))


class StoreContract:
    """The promises, one test each."""

    async def test_a_tenant_comes_back_as_it_was_stored(self, store: Store) -> None:
        tenant = Tenant(id="tn_1", name="acme", created_at=12.25, disabled=True, weight=2.5)
        await store.create_tenant(tenant)
        assert await store.get_tenant("tn_1") == tenant
        assert (await store.get_tenant("tn_1")).disabled is True

    async def test_tenants_are_listed_oldest_first(self, store: Store) -> None:
        assert await store.list_tenants() == []
        late, early = a_tenant("late", at=9.0), a_tenant("early", at=2.0)
        await store.create_tenant(late)
        await store.create_tenant(early)
        assert await store.list_tenants() == [early, late]

    @pytest.mark.parametrize("clash", ["id", "name"])
    async def test_a_taken_id_or_name_is_a_conflict(self, store: Store, clash: str) -> None:
        first = a_tenant()
        await store.create_tenant(first)
        other = a_tenant("other")
        taken = replace(other, id=first.id) if clash == "id" else replace(other, name=first.name)
        with pytest.raises(Conflict):
            await store.create_tenant(taken)
        assert await store.list_tenants() == [first]
        await store.create_tenant(other)
        assert len(await store.list_tenants()) == 2

    async def test_a_missing_tenant_is_not_found(self, store: Store) -> None:
        ghost = a_tenant("ghost")
        for attempt in (
            store.get_tenant(ghost.id),
            store.update_tenant(ghost),
            store.delete_tenant(ghost.id),
            store.list_keys(ghost.id),
            store.create_key(a_key(ghost)),
        ):
            with pytest.raises(NotFound):
                await attempt
        await store.create_tenant(ghost)
        await store.create_key(a_key(ghost))
        assert await store.list_keys(ghost.id) == [a_key(ghost)]

    async def test_update_replaces_the_record(self, store: Store) -> None:
        tenant, bystander = a_tenant(), a_tenant("bystander")
        await store.create_tenant(tenant)
        await store.create_tenant(bystander)
        changed = replace(tenant, name="new", disabled=True, weight=7.0)
        await store.update_tenant(changed)
        assert await store.get_tenant(tenant.id) == changed
        assert await store.get_tenant(bystander.id) == bystander

    async def test_renaming_to_a_taken_name_is_a_conflict(self, store: Store) -> None:
        first, second = a_tenant("first"), a_tenant("second")
        await store.create_tenant(first)
        await store.create_tenant(second)
        with pytest.raises(Conflict):
            await store.update_tenant(replace(second, name="first"))
        assert await store.get_tenant(second.id) == second
        await store.update_tenant(replace(second, name="second", weight=3.0))
        assert (await store.get_tenant(second.id)).weight == 3.0

    async def test_deleting_a_tenant_deletes_its_keys_and_no_others(self, store: Store) -> None:
        gone, stays = a_tenant("gone"), a_tenant("stays")
        for tenant in (gone, stays):
            await store.create_tenant(tenant)
            await store.create_key(a_key(tenant))
        await store.delete_tenant(gone.id)
        assert await store.find_by_digest(a_key(gone).digest) is None
        with pytest.raises(NotFound):
            await store.get_key(a_key(gone).id)
        assert await store.find_by_digest(a_key(stays).digest) == (a_key(stays), stays)
        assert await store.list_tenants() == [stays]

    async def test_the_name_of_a_deleted_tenant_is_free_again(self, store: Store) -> None:
        await store.create_tenant(a_tenant())
        await store.delete_tenant(a_tenant().id)
        await store.create_tenant(replace(a_tenant(), id="tn_again"))
        assert await store.list_keys("tn_again") == []

    async def test_a_key_comes_back_as_it_was_stored(self, store: Store) -> None:
        tenant = a_tenant()
        await store.create_tenant(tenant)
        plain = a_key(tenant, 1)
        full = replace(a_key(tenant, 2), digest=bytes(range(32)), expires_at=5.5, revoked_at=6.5)
        for key in (plain, full):
            await store.create_key(key)
            assert await store.get_key(key.id) == key
            assert await store.find_by_digest(key.digest) == (key, tenant)

    async def test_keys_are_listed_oldest_first_and_by_tenant(self, store: Store) -> None:
        first, second = a_tenant("first"), a_tenant("second")
        for tenant in (first, second):
            await store.create_tenant(tenant)
            for number in (3, 1, 2):
                await store.create_key(a_key(tenant, number))
        assert await store.list_keys(first.id) == [a_key(first, n) for n in (1, 2, 3)]

    @pytest.mark.parametrize("clash", ["id", "digest"])
    async def test_a_key_is_stored_once(self, store: Store, clash: str) -> None:
        tenant = a_tenant()
        await store.create_tenant(tenant)
        first, second = a_key(tenant, 1), a_key(tenant, 2)
        await store.create_key(first)
        taken = (
            replace(second, id=first.id) if clash == "id" else replace(second, digest=first.digest)
        )
        with pytest.raises(Conflict):
            await store.create_key(taken)
        await store.create_key(second)
        assert await store.list_keys(tenant.id) == [first, second]

    async def test_a_missing_key_is_not_found(self, store: Store) -> None:
        tenant = a_tenant()
        await store.create_tenant(tenant)
        with pytest.raises(NotFound):
            await store.get_key("key_none")
        with pytest.raises(NotFound):
            await store.update_key(a_key(tenant))

    async def test_a_digest_is_found_whole_or_not_at_all(self, store: Store) -> None:
        tenant = a_tenant()
        await store.create_tenant(tenant)
        key = a_key(tenant)
        await store.create_key(key)
        for near in (b"", key.digest[:-1], key.digest + b"\0", key.digest[:-1] + b"!"):
            assert await store.find_by_digest(near) is None
        assert await store.find_by_digest(key.digest) == (key, tenant)

    async def test_expiry_and_revocation_are_replaced(self, store: Store) -> None:
        tenant = a_tenant()
        await store.create_tenant(tenant)
        key, other = a_key(tenant, 1), a_key(tenant, 2)
        await store.create_key(key)
        await store.create_key(other)
        await store.update_key(replace(key, expires_at=50.0))
        assert await store.get_key(key.id) == replace(key, expires_at=50.0)
        await store.update_key(replace(key, expires_at=None, revoked_at=60.0))
        assert await store.get_key(key.id) == replace(key, revoked_at=60.0)
        assert await store.get_key(other.id) == other

    async def test_a_stored_revocation_stays(self, store: Store) -> None:
        tenant = a_tenant()
        await store.create_tenant(tenant)
        before = a_key(tenant)
        await store.create_key(before)
        await store.update_key(replace(before, revoked_at=60.0))
        await store.update_key(replace(before, expires_at=99.0))  # read before the revocation
        after = await store.get_key(before.id)
        assert (after.expires_at, after.revoked_at) == (99.0, 60.0)
        await store.update_key(replace(before, revoked_at=70.0))
        assert (await store.get_key(before.id)).revoked_at == 60.0

    async def test_find_shows_the_tenant_as_it_is_now(self, store: Store) -> None:
        tenant = a_tenant()
        await store.create_tenant(tenant)
        await store.create_key(a_key(tenant))
        await store.update_tenant(replace(tenant, disabled=True))
        found = await store.find_by_digest(a_key(tenant).digest)
        assert found is not None
        assert found[1].disabled

    @pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
    async def test_text_is_data(self, store: Store, text: str) -> None:
        bystander = a_tenant("bystander")
        await store.create_tenant(bystander)
        with pytest.raises(NotFound):
            await store.get_tenant(text)
        with pytest.raises(NotFound):
            await store.delete_tenant(text)
        tenant = Tenant(id=text, name=text, created_at=2.0)
        await store.create_tenant(tenant)
        key = replace(a_key(bystander), id=text, tenant_id=text, hint=text)
        await store.create_key(key)
        assert await store.find_by_digest(key.digest) == (key, tenant)
        assert await store.list_tenants() == [bystander, tenant]
        assert await store.list_keys(bystander.id) == []

    async def test_of_fifty_at_once_one_gets_the_name(self, store: Store) -> None:
        rivals = [Tenant(id=f"tn_{i}", name="same", created_at=1.0) for i in range(50)]
        results = await asyncio.gather(
            *(store.create_tenant(rival) for rival in rivals), return_exceptions=True
        )
        assert sum(result is None for result in results) == 1
        assert sum(isinstance(result, Conflict) for result in results) == 49
        assert len(await store.list_tenants()) == 1

    async def test_a_tenant_joins_a_group_that_is_there(self, store: Store) -> None:
        loner, friend = a_tenant("loner"), replace(a_tenant("friend"), group_id=a_group().id)
        with pytest.raises(NotFound):
            await store.create_tenant(friend)
        await store.create_tenant(loner)
        with pytest.raises(NotFound):
            await store.update_tenant(replace(loner, group_id=a_group().id))
        assert await store.list_tenants() == [loner]
        await store.create_group(a_group())
        await store.create_tenant(friend)
        await store.update_tenant(replace(loner, group_id=a_group().id))
        assert {t.group_id for t in await store.list_tenants()} == {a_group().id}

    async def test_groups_come_back_oldest_first_and_can_be_renamed(self, store: Store) -> None:
        late, early = a_group("late", at=9.0), a_group("early", at=2.0)
        await store.create_group(late)
        await store.create_group(early)
        assert await store.list_groups() == [early, late]
        with pytest.raises(Conflict):
            await store.create_group(replace(late, id="gr_other"))
        with pytest.raises(Conflict):
            await store.update_group(replace(early, name="late"))
        await store.update_group(replace(early, name="first"))
        assert (await store.get_group(early.id)).name == "first"
        await store.create_group(replace(early, id="gr_again"))  # the old name is free

    async def test_a_missing_group_is_not_found(self, store: Store) -> None:
        for attempt in (
            store.get_group("gr_none"),
            store.update_group(a_group()),
            store.delete_group("gr_none"),
        ):
            with pytest.raises(NotFound):
                await attempt

    async def test_a_group_goes_when_nothing_belongs_to_it(self, store: Store) -> None:
        group = a_group()
        member = replace(a_tenant(), group_id=group.id)
        prefix = a_prefix(scope=group.id)
        await store.create_group(group)
        await store.create_tenant(member)
        await store.create_prefix(prefix)
        with pytest.raises(Conflict):
            await store.delete_group(group.id)
        await store.update_tenant(replace(member, group_id=None))
        with pytest.raises(Conflict):
            await store.delete_group(group.id)
        await store.update_prefix(replace(prefix, deleted_at=5.0))
        await store.delete_group(group.id)
        assert await store.list_groups() == []
        assert (await store.get_prefix(prefix.id)).scope == group.id  # history stays
        await store.create_group(group)
        await store.update_tenant(member)
        await store.delete_tenant(member.id)
        await store.delete_group(group.id)  # a deleted tenant belongs to nothing

    async def test_prefixes_come_back_as_they_were_stored(self, store: Store) -> None:
        first = a_prefix("rules", 1)
        second = replace(
            a_prefix("rules", 2), source=PrefixSource(messages=[{"role": "user", "content": "hi"}])
        )
        await store.create_prefix(second)
        await store.create_prefix(first)
        assert await store.list_prefixes() == [first, second]
        assert await store.get_prefix(second.id) == second
        with pytest.raises(NotFound):
            await store.get_prefix("px_none")
        with pytest.raises(NotFound):
            await store.update_prefix(a_prefix("ghost"))
        with pytest.raises(NotFound):
            await store.create_prefix(a_prefix("ours", scope="gr_none"))
        assert len(await store.list_prefixes()) == 2

    async def test_tools_stay_as_they_were_sent(self, store: Store) -> None:
        function = {"name": "é", "parameters": {"z": [1, 2.0, 10**25, None], "a": {"y": 1, "b": 2}}}
        tools: list[dict[str, Any]] = [{"type": "function", "function": function}, {"zz": 1}]
        source = PrefixSource(messages=[{"role": "user", "content": "hi"}], tools=tools)
        alone = replace(a_prefix("alone"), source=PrefixSource(tools=tools))
        prefix = replace(a_prefix(), source=source)
        for one in (prefix, alone):
            await store.create_prefix(one)
            kept = (await store.get_prefix(one.id)).source.tools
            assert json.dumps(kept) == json.dumps(tools)  # fields in their order, too
        await store.update_prefix(replace(prefix, tokens=3))
        assert (await store.get_prefix(prefix.id)).source == source
        await store.update_prefix(replace(prefix, deleted_at=7.0))
        assert (await store.get_prefix(prefix.id)).source.tools is None
        assert (await store.get_prefix(alone.id)).source.tools == tools

    async def test_a_version_is_given_once_even_after_its_deletion(self, store: Store) -> None:
        prefix = a_prefix()
        await store.create_prefix(prefix)
        again = replace(prefix, id="px_again")
        with pytest.raises(Conflict):
            await store.create_prefix(again)
        with pytest.raises(Conflict):
            await store.create_prefix(replace(prefix, version=2))  # its id is taken
        assert await store.list_prefixes() == [prefix]
        await store.update_prefix(replace(prefix, deleted_at=7.0))
        with pytest.raises(Conflict):
            await store.create_prefix(again)
        await store.create_prefix(replace(again, version=2))

    async def test_a_prefix_learns_its_tokens_and_stays_deleted(self, store: Store) -> None:
        prefix = a_prefix()
        await store.create_prefix(prefix)
        await store.update_prefix(replace(prefix, tokens=42))
        assert await store.get_prefix(prefix.id) == replace(prefix, tokens=42)
        await store.update_prefix(replace(prefix, tokens=42, deleted_at=7.0))
        await store.update_prefix(replace(prefix, tokens=43))  # read before the deletion
        after = await store.get_prefix(prefix.id)
        assert (after.tokens, after.deleted_at) == (43, 7.0)

    async def test_usage_adds_up_by_tenant_key_and_day(self, store: Store) -> None:
        await store.add_usage([a_row(requests=1, cached_tokens=5)], batch="1")
        await store.add_usage(
            [
                a_row(requests=2, computed_tokens=7),
                a_row(key="key_2", requests=1),
                a_row(day="2026-02-01", requests=1),
                a_row(tenant="tn_b", requests=4),
            ],
            batch="2",
        )
        every = await store.usage("2026-01-01", "2026-12-31")
        assert every == [
            a_row(requests=3, cached_tokens=5, computed_tokens=7),
            a_row(key="key_2", requests=1),
            a_row(tenant="tn_b", requests=4),
            a_row(day="2026-02-01", requests=1),
        ]
        assert await store.usage("2026-01-31", "2026-01-31") == every[:3]
        assert await store.usage("2026-02-01", "2026-12-31") == every[3:]
        assert await store.usage("2026-02-02", "2026-12-31") == []
        assert await store.usage("2026-01-01", "2026-12-31", tenant_id="tn_b") == every[2:3]
        assert await store.usage("2026-01-01", "2026-12-31", key_id="key_2") == every[1:2]
        ours = await store.usage("2026-01-01", "2026-12-31", tenant_id="tn_a", key_id="key_1")
        assert ours == [every[0], every[3]]

    async def test_what_nobody_measured_is_not_zero(self, store: Store) -> None:
        await store.add_usage([a_row(requests=1)], batch="1")
        [row] = await store.usage("2026-01-31", "2026-01-31")
        assert row.counters.engine_ms is None
        measured = Counters(engine_ms=1.5, saved_ms=2.25)
        await store.add_usage([replace(a_row(), counters=measured)], batch="2")
        await store.add_usage([replace(a_row(), counters=measured)], batch="3")
        [row] = await store.usage("2026-01-31", "2026-01-31")
        assert row.counters == Counters(requests=1, engine_ms=3.0, saved_ms=4.5)

    async def test_what_is_read_later_is_added_to_the_writer_s_row(self, store: Store) -> None:
        await store.add_usage([a_row(requests=1, cache_written_tokens=64)], batch="1")
        reader = a_row(day="2026-02-01", tenant="tn_b", requests=1)
        await store.add_usage([reader, a_row(cache_read_tokens=48)], batch="2")
        await store.add_usage([a_row(cache_read_tokens=16)], batch="3")
        assert await store.usage("2026-01-01", "2026-12-31") == [
            a_row(requests=1, cache_written_tokens=64, cache_read_tokens=64),
            reader,
        ]

    async def test_a_batch_that_comes_twice_is_counted_once(self, store: Store) -> None:
        for batch in ("first", "first", "second"):
            await store.add_usage([a_row(requests=1)], batch=batch)
        [row] = await store.usage("2026-01-31", "2026-01-31")
        assert row.counters.requests == 2

    async def test_usage_that_is_added_at_once_is_all_there(self, store: Store) -> None:
        await asyncio.gather(
            *(store.add_usage([a_row(requests=1)], batch=str(i)) for i in range(50))
        )
        [row] = await store.usage("2026-01-31", "2026-01-31")
        assert row.counters.requests == 50

    async def test_usage_outlives_its_tenant(self, store: Store) -> None:
        await store.create_tenant(a_tenant())
        await store.add_usage([a_row(tenant=a_tenant().id, requests=1)], batch="1")
        await store.delete_tenant(a_tenant().id)
        assert len(await store.usage("2026-01-01", "2026-12-31")) == 1

    async def test_the_audit_log_is_read_newest_first(self, store: Store) -> None:
        assert await store.list_audit(limit=10) == []
        entries = [
            AuditEntry(time=1.0, actor="op", action=f"a{i}", target="t", detail={"n": i, "é": "🌱"})
            for i in range(5)
        ]
        for entry in entries:
            await store.append_audit(entry)
        assert await store.list_audit(limit=10) == entries[::-1]
        assert await store.list_audit(limit=2) == [entries[4], entries[3]]
        assert await store.list_audit(limit=2, skip=2) == [entries[2], entries[1]]
        assert await store.list_audit(limit=2, skip=5) == []

    async def test_random_changes_agree_with_a_plain_model(self, store: Store) -> None:
        rng = random.Random(7)
        model = MemoryStore()
        for _ in range(400):
            seed = rng.random()
            assert await _random_change(store, random.Random(seed)) == await _random_change(
                model, random.Random(seed)
            )
        tenants = await store.list_tenants()
        assert {t.id: t for t in tenants} == model.tenants
        stored = [key for tenant in tenants for key in await store.list_keys(tenant.id)]
        assert {key.id: key for key in stored} == model.keys
        assert model.keys  # the walk did not end where everything is deleted


async def _random_change(store: Store, rng: random.Random) -> str:
    """One change out of few names, so that they collide; returns how it ended."""
    tenant = replace(a_tenant(rng.choice("abcd")), weight=float(rng.randrange(1, 5)))
    tenant = replace(tenant, name=rng.choice("abcd"))
    key = replace(a_key(a_tenant(rng.choice("abcd")), rng.randrange(4)), tenant_id=tenant.id)
    changes: list[Callable[[], Awaitable[None]]] = [
        lambda: store.create_tenant(tenant),
        lambda: store.update_tenant(tenant),
        lambda: store.create_key(key),
        lambda: store.create_key(key),
        lambda: store.update_key(replace(key, expires_at=rng.random())),
        lambda: store.update_key(replace(key, revoked_at=rng.random())),
        lambda: store.delete_tenant(tenant.id),
    ]
    [change] = rng.choices(changes, weights=[6, 6, 6, 6, 6, 2, 1])
    try:
        await change()
    except (Conflict, NotFound):
        return "refused"  # where both apply, either may be named
    return "done"
