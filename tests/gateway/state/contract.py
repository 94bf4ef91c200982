"""Properties of every store of the state.

A store's test module subclasses `StoreContract` and provides the fixture `store`; pytest runs every
test below with it.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gateway.errors import Conflict, NotFound
from gateway.state.records import (
    EVERYONE,
    ApiKey,
    AuditEntry,
    CacheFlush,
    Group,
    IsolationReport,
    ModuleSchema,
    PrefixSource,
    PublishedPrefix,
    RegisteredEngine,
    ResponseRoom,
    StoredResponse,
    Tenant,
)
from gateway.state.store import MOST_SCHEMAS, Store
from gateway.state.usage_records import Counters, UsageRow
from tests.gateway.state.memory_store import MemoryStore
from tests.gateway.support.put_record import put

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


def a_response(tenant: Tenant, number: int = 1, text: str = "é 🌱") -> StoredResponse:
    content = msgspec.Raw(msgspec.json.encode({"said": text}))
    return StoredResponse(
        id=f"resp_{number}",
        tenant_id=tenant.id,
        created_at=float(number),
        expires_at=100.0 + number,
        content=content,
    )


def a_schema(tenant: Tenant, number: int = 1, text: str = "") -> ModuleSchema:
    content = msgspec.Raw(msgspec.json.encode({"text": text}))
    return ModuleSchema(
        id=f"modules_{number}", tenant_id=tenant.id, created_at=float(number), content=content
    )


def room_for(of_tenant: int, of_all: int = 1000) -> ResponseRoom:
    """Return limits with room for `of_tenant` copies of `a_response` per tenant, and `of_all` in
    all.

    The copies have one-digit numbers.
    """
    size = len(msgspec.json.encode(a_response(a_tenant())))
    return ResponseRoom(of_one=size, of_tenant=of_tenant * size, of_all=of_all * size)


async def kept(store: Store, tenant: Tenant, most: int = 9) -> list[int]:
    """Return the numbers of the tenant's stored responses."""
    numbers = []
    for number in range(1, most + 1):
        try:
            found = await store.find_response(tenant.id, f"resp_{number}", now=0.0)
        except NotFound:
            continue
        assert found == a_response(tenant, number)
        numbers.append(number)
    return numbers


def a_row(day: str = "2026-01-31", tenant: str = "tn_a", key: str = "key_1", **n: int) -> UsageRow:
    return UsageRow(day=day, tenant_id=tenant, key_id=key, counters=Counters(**n))


class StoreContract:
    """The properties of every store, one test each."""

    async def test_a_tenant_comes_back_as_it_was_stored(self, store: Store) -> None:
        tenant = Tenant(id="tn_1", name="acme", created_at=12.25, disabled=True, weight=2.5)
        await store.create(tenant)
        assert await store.get(Tenant, "tn_1") == tenant
        assert (await store.get(Tenant, "tn_1")).disabled is True

    async def test_tenants_are_listed_oldest_first(self, store: Store) -> None:
        assert await store.every(Tenant) == []
        late, early = a_tenant("late", at=9.0), a_tenant("early", at=2.0)
        await store.create(late)
        await store.create(early)
        assert await store.every(Tenant) == [early, late]

    @pytest.mark.parametrize("clash", ["id", "name"])
    async def test_a_taken_id_or_name_is_a_conflict(self, store: Store, clash: str) -> None:
        first = a_tenant()
        await store.create(first)
        other = a_tenant("other")
        taken = replace(other, id=first.id) if clash == "id" else replace(other, name=first.name)
        with pytest.raises(Conflict):
            await store.create(taken)
        assert await store.every(Tenant) == [first]
        await store.create(other)
        assert len(await store.every(Tenant)) == 2

    async def test_a_missing_tenant_is_not_found(self, store: Store) -> None:
        ghost = a_tenant("ghost")
        for attempt in (
            store.get(Tenant, ghost.id),
            put(store, ghost),
            store.delete(Tenant, ghost.id),
            store.list_keys(ghost.id),
            store.create(a_key(ghost)),
        ):
            with pytest.raises(NotFound):
                await attempt
        await store.create(ghost)
        await store.create(a_key(ghost))
        assert await store.list_keys(ghost.id) == [a_key(ghost)]

    async def test_update_replaces_the_record(self, store: Store) -> None:
        tenant, bystander = a_tenant(), a_tenant("bystander")
        await store.create(tenant)
        await store.create(bystander)
        changed = replace(tenant, name="new", disabled=True, weight=7.0)
        await put(store, changed)
        assert await store.get(Tenant, tenant.id) == changed
        assert await store.get(Tenant, bystander.id) == bystander

    async def test_changes_at_once_do_not_undo_each_other(self, store: Store) -> None:
        tenant = a_tenant()
        await store.create(tenant)

        def heavier(stored: Tenant) -> Tenant:
            return replace(stored, weight=stored.weight + 1)

        changes = [store.update(Tenant, tenant.id, heavier) for _ in range(8)]
        disabling = store.update(Tenant, tenant.id, lambda one: replace(one, disabled=True))
        *_, seen = await asyncio.gather(*changes, disabling)
        assert seen.disabled
        after = await store.get(Tenant, tenant.id)
        assert (after.disabled, after.weight) == (True, tenant.weight + 8)
        await put(store, tenant)  # positive control: an outdated record would overwrite everything
        assert await store.get(Tenant, tenant.id) == tenant

    async def test_a_change_that_cannot_be_made_changes_nothing(self, store: Store) -> None:
        tenant = a_tenant()
        await store.create(tenant)

        def refused(stored: Tenant) -> Tenant:
            raise Conflict(stored.name)

        with pytest.raises(Conflict):
            await store.update(Tenant, tenant.id, refused)
        assert await store.get(Tenant, tenant.id) == tenant
        changed = await store.update(Tenant, tenant.id, lambda one: replace(one, weight=2.0))
        assert changed == replace(tenant, weight=2.0)

    async def test_renaming_to_a_taken_name_is_a_conflict(self, store: Store) -> None:
        first, second = a_tenant("first"), a_tenant("second")
        await store.create(first)
        await store.create(second)
        with pytest.raises(Conflict):
            await put(store, replace(second, name="first"))
        assert await store.get(Tenant, second.id) == second
        await put(store, replace(second, name="second", weight=3.0))
        assert (await store.get(Tenant, second.id)).weight == 3.0

    async def test_deleting_a_tenant_deletes_its_keys_and_no_others(self, store: Store) -> None:
        gone, stays = a_tenant("gone"), a_tenant("stays")
        for tenant in (gone, stays):
            await store.create(tenant)
            await store.create(a_key(tenant))
        await store.delete(Tenant, gone.id)
        assert await store.find_by_digest(a_key(gone).digest) is None
        with pytest.raises(NotFound):
            await store.get(ApiKey, a_key(gone).id)
        assert await store.find_by_digest(a_key(stays).digest) == (a_key(stays), stays)
        assert await store.every(Tenant) == [stays]

    async def test_the_name_of_a_deleted_tenant_is_free_again(self, store: Store) -> None:
        await store.create(a_tenant())
        await store.delete(Tenant, a_tenant().id)
        await store.create(replace(a_tenant(), id="tn_again"))
        assert await store.list_keys("tn_again") == []

    async def test_a_key_comes_back_as_it_was_stored(self, store: Store) -> None:
        tenant = a_tenant()
        await store.create(tenant)
        plain = a_key(tenant, 1)
        full = replace(a_key(tenant, 2), digest=bytes(range(32)), expires_at=5.5, revoked_at=6.5)
        for key in (plain, full):
            await store.create(key)
            assert await store.get(ApiKey, key.id) == key
            assert await store.find_by_digest(key.digest) == (key, tenant)

    async def test_keys_are_listed_oldest_first_and_by_tenant(self, store: Store) -> None:
        first, second = a_tenant("first"), a_tenant("second")
        for tenant in (first, second):
            await store.create(tenant)
            for number in (3, 1, 2):
                await store.create(a_key(tenant, number))
        assert await store.list_keys(first.id) == [a_key(first, n) for n in (1, 2, 3)]

    @pytest.mark.parametrize("clash", ["id", "digest"])
    async def test_a_key_is_stored_once(self, store: Store, clash: str) -> None:
        tenant = a_tenant()
        await store.create(tenant)
        first, second = a_key(tenant, 1), a_key(tenant, 2)
        await store.create(first)
        taken = (
            replace(second, id=first.id) if clash == "id" else replace(second, digest=first.digest)
        )
        with pytest.raises(Conflict):
            await store.create(taken)
        await store.create(second)
        assert await store.list_keys(tenant.id) == [first, second]

    async def test_a_missing_key_is_not_found(self, store: Store) -> None:
        tenant = a_tenant()
        await store.create(tenant)
        with pytest.raises(NotFound):
            await store.get(ApiKey, "key_none")
        with pytest.raises(NotFound):
            await put(store, a_key(tenant))

    async def test_a_digest_is_found_whole_or_not_at_all(self, store: Store) -> None:
        tenant = a_tenant()
        await store.create(tenant)
        key = a_key(tenant)
        await store.create(key)
        for near in (b"", key.digest[:-1], key.digest + b"\0", key.digest[:-1] + b"!"):
            assert await store.find_by_digest(near) is None
        assert await store.find_by_digest(key.digest) == (key, tenant)

    async def test_expiry_and_revocation_are_replaced(self, store: Store) -> None:
        tenant = a_tenant()
        await store.create(tenant)
        key, other = a_key(tenant, 1), a_key(tenant, 2)
        await store.create(key)
        await store.create(other)
        await put(store, replace(key, expires_at=50.0))
        assert await store.get(ApiKey, key.id) == replace(key, expires_at=50.0)
        await put(store, replace(key, expires_at=None, revoked_at=60.0))
        assert await store.get(ApiKey, key.id) == replace(key, revoked_at=60.0)
        assert await store.get(ApiKey, other.id) == other

    async def test_a_stored_revocation_stays(self, store: Store) -> None:
        tenant = a_tenant()
        await store.create(tenant)
        before = a_key(tenant)
        await store.create(before)
        await put(store, replace(before, revoked_at=60.0))
        # the record was read before the revocation
        await put(store, replace(before, expires_at=99.0))
        after = await store.get(ApiKey, before.id)
        assert (after.expires_at, after.revoked_at) == (99.0, 60.0)
        await put(store, replace(before, revoked_at=70.0))
        assert (await store.get(ApiKey, before.id)).revoked_at == 60.0

    async def test_find_shows_the_tenant_as_it_is_now(self, store: Store) -> None:
        tenant = a_tenant()
        await store.create(tenant)
        await store.create(a_key(tenant))
        await put(store, replace(tenant, disabled=True))
        found = await store.find_by_digest(a_key(tenant).digest)
        assert found is not None
        assert found[1].disabled

    @pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
    async def test_text_is_data(self, store: Store, text: str) -> None:
        bystander = a_tenant("bystander")
        await store.create(bystander)
        with pytest.raises(NotFound):
            await store.get(Tenant, text)
        with pytest.raises(NotFound):
            await store.delete(Tenant, text)
        tenant = Tenant(id=text, name=text, created_at=2.0)
        await store.create(tenant)
        key = replace(a_key(bystander), id=text, tenant_id=text, hint=text)
        await store.create(key)
        assert await store.find_by_digest(key.digest) == (key, tenant)
        assert await store.every(Tenant) == [bystander, tenant]
        assert await store.list_keys(bystander.id) == []

    async def test_of_fifty_at_once_one_gets_the_name(self, store: Store) -> None:
        rivals = [Tenant(id=f"tn_{i}", name="same", created_at=1.0) for i in range(50)]
        results = await asyncio.gather(
            *(store.create(rival) for rival in rivals), return_exceptions=True
        )
        assert sum(result is None for result in results) == 1
        assert sum(isinstance(result, Conflict) for result in results) == 49
        assert len(await store.every(Tenant)) == 1

    async def test_a_tenant_joins_a_group_that_is_there(self, store: Store) -> None:
        loner, friend = a_tenant("loner"), replace(a_tenant("friend"), group_id=a_group().id)
        with pytest.raises(NotFound):
            await store.create(friend)
        await store.create(loner)
        with pytest.raises(NotFound):
            await put(store, replace(loner, group_id=a_group().id))
        assert await store.every(Tenant) == [loner]
        await store.create(a_group())
        await store.create(friend)
        await put(store, replace(loner, group_id=a_group().id))
        assert {t.group_id for t in await store.every(Tenant)} == {a_group().id}

    async def test_groups_come_back_oldest_first_and_can_be_renamed(self, store: Store) -> None:
        late, early = a_group("late", at=9.0), a_group("early", at=2.0)
        await store.create(late)
        await store.create(early)
        assert await store.every(Group) == [early, late]
        with pytest.raises(Conflict):
            await store.create(replace(late, id="gr_other"))
        with pytest.raises(Conflict):
            await put(store, replace(early, name="late"))
        await put(store, replace(early, name="first"))
        assert (await store.get(Group, early.id)).name == "first"
        await store.create(replace(early, id="gr_again"))  # no group has the old name any more

    async def test_a_missing_group_is_not_found(self, store: Store) -> None:
        for attempt in (
            store.get(Group, "gr_none"),
            put(store, a_group()),
            store.delete(Group, "gr_none"),
        ):
            with pytest.raises(NotFound):
                await attempt

    async def test_a_group_goes_when_nothing_belongs_to_it(self, store: Store) -> None:
        group = a_group()
        member = replace(a_tenant(), group_id=group.id)
        prefix = a_prefix(scope=group.id)
        await store.create(group)
        await store.create(member)
        await store.create(prefix)
        with pytest.raises(Conflict):
            await store.delete(Group, group.id)
        await put(store, replace(member, group_id=None))
        with pytest.raises(Conflict):
            await store.delete(Group, group.id)
        await put(store, replace(prefix, deleted_at=5.0))
        await store.delete(Group, group.id)
        assert await store.every(Group) == []
        # a deleted prefix keeps its scope, even if the group is deleted
        assert (await store.get(PublishedPrefix, prefix.id)).scope == group.id
        await store.create(group)
        await put(store, member)
        await store.delete(Tenant, member.id)
        await store.delete(Group, group.id)  # a deleted tenant belongs to no group

    async def test_prefixes_come_back_as_they_were_stored(self, store: Store) -> None:
        first = a_prefix("rules", 1)
        second = replace(
            a_prefix("rules", 2), source=PrefixSource(messages=[{"role": "user", "content": "hi"}])
        )
        await store.create(second)
        await store.create(first)
        assert await store.every(PublishedPrefix) == [first, second]
        assert await store.get(PublishedPrefix, second.id) == second
        with pytest.raises(NotFound):
            await store.get(PublishedPrefix, "px_none")
        with pytest.raises(NotFound):
            await put(store, a_prefix("ghost"))
        with pytest.raises(NotFound):
            await store.create(a_prefix("ours", scope="gr_none"))
        assert len(await store.every(PublishedPrefix)) == 2

    async def test_tools_stay_as_they_were_sent(self, store: Store) -> None:
        function = {"name": "é", "parameters": {"z": [1, 2.0, 10**25, None], "a": {"y": 1, "b": 2}}}
        tools: list[dict[str, Any]] = [{"type": "function", "function": function}, {"zz": 1}]
        source = PrefixSource(messages=[{"role": "user", "content": "hi"}], tools=tools)
        alone = replace(a_prefix("alone"), source=PrefixSource(tools=tools))
        prefix = replace(a_prefix(), source=source)
        for one in (prefix, alone):
            await store.create(one)
            kept = (await store.get(PublishedPrefix, one.id)).source.tools
            assert json.dumps(kept) == json.dumps(tools)  # the fields are in the same order too
        await put(store, replace(prefix, tokens=3))
        assert (await store.get(PublishedPrefix, prefix.id)).source == source
        await put(store, replace(prefix, deleted_at=7.0))
        assert (await store.get(PublishedPrefix, prefix.id)).source.tools is None
        assert (await store.get(PublishedPrefix, alone.id)).source.tools == tools

    async def test_a_version_is_given_once_even_after_its_deletion(self, store: Store) -> None:
        prefix = a_prefix()
        await store.create(prefix)
        again = replace(prefix, id="px_again")
        with pytest.raises(Conflict):
            await store.create(again)
        with pytest.raises(Conflict):
            await store.create(replace(prefix, version=2))  # a prefix with this id exists
        assert await store.every(PublishedPrefix) == [prefix]
        await put(store, replace(prefix, deleted_at=7.0))
        with pytest.raises(Conflict):
            await store.create(again)
        await store.create(replace(again, version=2))

    async def test_a_prefix_learns_its_tokens_and_stays_deleted(self, store: Store) -> None:
        prefix = a_prefix()
        await store.create(prefix)
        await put(store, replace(prefix, tokens=42))
        assert await store.get(PublishedPrefix, prefix.id) == replace(prefix, tokens=42)
        await put(store, replace(prefix, tokens=42, deleted_at=7.0))
        await put(store, replace(prefix, tokens=43))  # the record was read before the deletion
        after = await store.get(PublishedPrefix, prefix.id)
        assert (after.tokens, after.deleted_at) == (43, 7.0)

    async def test_a_response_is_its_tenant_s_alone(self, store: Store) -> None:
        mine, other = a_tenant("mine"), a_tenant("hers")
        for tenant in (mine, other):
            await store.create(tenant)
        ours = a_response(mine)
        assert await store.keep_response(ours, room_for(9))
        assert await store.find_response(mine.id, ours.id, now=1.0) == ours
        for tenant_id in (other.id, "", f"{mine.id}:", "tn_ghost"):
            with pytest.raises(NotFound):
                await store.find_response(tenant_id, ours.id, now=1.0)
            with pytest.raises(NotFound):
                await store.drop_response(tenant_id, ours.id, now=1.0)
        with pytest.raises(Conflict):
            await store.keep_response(ours, room_for(9))
        theirs = replace(ours, tenant_id=other.id, content=msgspec.Raw(b'"theirs"'))
        assert await store.keep_response(theirs, room_for(9))  # each tenant has ids of its own
        assert await store.find_response(mine.id, ours.id, now=1.0) == ours
        await store.drop_response(mine.id, ours.id, now=1.0)
        with pytest.raises(NotFound):
            await store.find_response(mine.id, ours.id, now=1.0)
        assert await store.find_response(other.id, ours.id, now=1.0) == theirs

    async def test_a_response_is_replaced_while_it_is_there(self, store: Store) -> None:
        mine, other = a_tenant("mine"), a_tenant("hers")
        for tenant in (mine, other):
            await store.create(tenant)
        ours = a_response(mine)
        assert await store.keep_response(ours, room_for(9))
        longer = replace(ours, expires_at=ours.expires_at + 100, content=msgspec.Raw(b'"longer"'))
        await store.replace_response(longer, now=1.0)
        assert await store.find_response(mine.id, ours.id, now=ours.expires_at + 1) == longer
        with pytest.raises(NotFound):
            await store.replace_response(replace(ours, tenant_id=other.id), now=1.0)
        with pytest.raises(NotFound):
            await store.replace_response(ours, now=longer.expires_at)
        with pytest.raises(NotFound):
            await store.find_response(mine.id, ours.id, now=longer.expires_at)

    async def test_the_ids_of_responses_are_listed(self, store: Store) -> None:
        mine, other = a_tenant("mine"), a_tenant("hers")
        for tenant in (mine, other):
            await store.create(tenant)
        named = {name: replace(a_response(mine, at), id=name) for at, name in enumerate("acb", 1)}
        special = ["%x", "*x", "[a]x", "\\\\x", "?x"]
        more = [replace(a_response(mine, at), id=name) for at, name in enumerate(special, 4)]
        for one in (*named.values(), *more, a_response(other)):
            assert await store.keep_response(one, room_for(9))
        ids = ["a", "c", "b"]
        assert [
            one for name in ids for one in await store.response_ids(mine.id, name, now=1)
        ] == ids
        assert await store.response_ids(mine.id, "", now=1.0) == [*ids, *special]
        for name in special:
            assert await store.response_ids(mine.id, name[:-1], now=1.0) == [name]
        late = named["c"].expires_at
        assert await store.response_ids(mine.id, "", now=late) == ["b", *special]
        assert await store.response_ids(mine.id, "", now=None) == [*ids, *special]
        assert await store.response_ids("tn_ghost", "", now=1.0) == []

    @pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
    async def test_the_id_of_a_response_is_data(self, store: Store, text: str) -> None:
        await store.create(a_tenant())
        response = replace(a_response(a_tenant()), id=text)
        with pytest.raises(NotFound):
            await store.find_response(a_tenant().id, text, now=1.0)
        room = ResponseRoom(of_one=1 << 20, of_tenant=1 << 20, of_all=1 << 20)
        assert await store.keep_response(response, room)
        assert await store.find_response(a_tenant().id, text, now=1.0) == response
        assert await kept(store, a_tenant()) == []
        await store.drop_expired_responses(now=1000.0)
        with pytest.raises(NotFound):
            await store.find_response(a_tenant().id, text, now=1.0)

    async def test_a_response_ends_when_it_expires(self, store: Store) -> None:
        tenant = a_tenant()
        await store.create(tenant)
        assert await store.count_responses(tenant.id) == 0
        for number in (1, 2):
            await store.keep_response(a_response(tenant, number), room_for(9))
        assert await store.count_responses(tenant.id) == 2
        assert (await store.find_response(tenant.id, "resp_1", now=100.9)).id == "resp_1"
        for attempt in (store.find_response, store.drop_response):
            with pytest.raises(NotFound):
                await attempt(tenant.id, "resp_1", now=101.0)
        await store.drop_expired_responses(now=100.0)
        assert await kept(store, tenant) == [1, 2]
        await store.drop_expired_responses(now=101.5)
        assert await kept(store, tenant) == [2]
        assert await store.count_responses(tenant.id) == 1
        for number in (3, 4):  # expired responses need no room
            await store.keep_response(a_response(tenant, number), room_for(3))
        assert await kept(store, tenant) == [2, 3, 4]

    async def test_the_oldest_of_a_tenant_make_room(self, store: Store) -> None:
        tenant, other = a_tenant("acme"), a_tenant("emca")
        for one in (tenant, other):
            await store.create(one)
        await store.keep_response(a_response(other), room_for(2))
        for number in (3, 1, 2):
            await store.keep_response(a_response(tenant, number), room_for(3))
        assert await kept(store, tenant) == [1, 2, 3]
        await store.keep_response(a_response(tenant, 4), room_for(2))
        assert await kept(store, tenant) == [3, 4]
        await store.drop_response(tenant.id, "resp_4", now=1.0)
        await store.keep_response(a_response(tenant, 5), room_for(2))
        assert await kept(store, tenant) == [3, 5]
        assert await kept(store, other) == [1]

    async def test_of_all_tenants_the_one_that_has_most_makes_room(self, store: Store) -> None:
        much, some = a_tenant("much"), a_tenant("some")
        for one in (much, some):
            await store.create(one)
        for number in (2, 3, 4):
            await store.keep_response(a_response(much, number), room_for(9, 4))
        await store.keep_response(a_response(some, 1), room_for(9, 4))
        await store.keep_response(a_response(some, 5), room_for(9, 4))
        assert (await kept(store, much), await kept(store, some)) == ([3, 4], [1, 5])

    async def test_a_response_beyond_the_room_changes_nothing(self, store: Store) -> None:
        tenant = a_tenant()
        await store.create(tenant)
        await store.keep_response(a_response(tenant, 1), room_for(1))
        big = a_response(tenant, 2, text="é 🌱!")
        assert not await store.keep_response(big, room_for(9))
        assert await kept(store, tenant) == [1]
        assert await store.keep_response(a_response(tenant, 2), room_for(9))  # positive control

    @pytest.mark.parametrize("change", ["deleted", "disabled"])
    async def test_responses_go_with_their_tenant(self, store: Store, change: str) -> None:
        tenant, other = a_tenant("gone"), a_tenant("here")
        for one in (tenant, other):
            await store.create(one)
            for number in (1, 2):
                await store.keep_response(a_response(one, number), room_for(2, 4))
        if change == "deleted":
            await store.delete(Tenant, tenant.id)
        else:
            await put(store, replace(tenant, disabled=True))
        assert (await kept(store, tenant), await kept(store, other)) == ([], [1, 2])
        with pytest.raises(NotFound):  # as if an answer ended after the change
            await store.keep_response(a_response(tenant, 3), room_for(2, 4))
        if change == "deleted":
            await store.create(tenant)
        else:
            await put(store, tenant)
        assert await kept(store, tenant) == []
        for number in (3, 4):  # the removed responses' bytes are free again
            await store.keep_response(a_response(tenant, number), room_for(2, 4))
        assert (await kept(store, tenant), await kept(store, other)) == ([3, 4], [1, 2])

    async def test_a_tenant_that_changes_keeps_its_responses(self, store: Store) -> None:
        await store.create(a_tenant())
        await store.keep_response(a_response(a_tenant()), room_for(1))
        await put(store, replace(a_tenant(), weight=2.0))
        assert await kept(store, a_tenant()) == [1]

    async def test_responses_that_are_kept_at_once_stay_within_the_room(self, store: Store) -> None:
        await store.create(a_tenant())
        responses = [a_response(a_tenant(), number) for number in range(1, 10)]
        assert all(
            await asyncio.gather(*(store.keep_response(one, room_for(4)) for one in responses))
        )
        assert len(await kept(store, a_tenant())) == 4

    async def test_a_tenants_schemas_are_its_own_and_go_with_it(self, store: Store) -> None:
        tenant, other = a_tenant(), a_tenant("other")
        for one in (tenant, other):
            await store.create(one)
        first, second = a_schema(tenant, 1), a_schema(tenant, 2, "é 🌱" * 50_000)
        for schema in (first, second, a_schema(other, 1)):
            assert await store.keep_schema(schema) == schema
        again = replace(first, created_at=9.0)
        assert await store.keep_schema(again) == first
        assert sorted(await store.schema_ids(tenant.id)) == sorted([first.id, second.id])
        assert await store.find_schema(tenant.id, second.id) == second
        with pytest.raises(NotFound):
            await store.find_schema(other.id, second.id)
        with pytest.raises(NotFound):
            await store.drop_schema(other.id, second.id)
        await store.drop_schema(tenant.id, second.id)
        with pytest.raises(NotFound):
            await store.drop_schema(tenant.id, second.id)
        assert await store.schema_ids(tenant.id) == [first.id]
        await store.delete(Tenant, tenant.id)
        assert await store.schema_ids(tenant.id) == []
        assert await store.schema_ids(other.id) == [a_schema(other, 1).id]
        with pytest.raises(NotFound):
            await store.keep_schema(first)

    async def test_a_tenant_has_so_many_schemas_and_no_more(self, store: Store) -> None:
        tenant = a_tenant()
        await store.create(tenant)
        made = [a_schema(tenant, number) for number in range(MOST_SCHEMAS + 3)]
        kept = await asyncio.gather(
            *(store.keep_schema(one) for one in made), return_exceptions=True
        )
        assert sum(isinstance(one, Conflict) for one in kept) == 3
        first_id, *_ = await store.schema_ids(tenant.id)
        first = await store.find_schema(tenant.id, first_id)
        assert await store.keep_schema(first) == first
        await store.drop_schema(tenant.id, first.id)
        assert await store.keep_schema(first) == first

    async def test_a_disabled_tenant_stores_no_schema(self, store: Store) -> None:
        tenant = a_tenant()
        await store.create(tenant)
        await store.update(Tenant, tenant.id, lambda one: replace(one, disabled=True))
        with pytest.raises(NotFound):
            await store.keep_schema(a_schema(tenant))

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
        await store.create(a_tenant())
        await store.add_usage([a_row(tenant=a_tenant().id, requests=1)], batch="1")
        await store.delete(Tenant, a_tenant().id)
        assert len(await store.usage("2026-01-01", "2026-12-31")) == 1

    async def test_the_last_isolation_report_is_kept(self, store: Store) -> None:
        assert await store.isolation_report() is None
        for text in HOSTILE:
            report = IsolationReport(at=1.5, verdict="passed", samples=9, report=text)
            await store.keep_isolation_report(report)
            assert await store.isolation_report() == report

    async def test_engines_come_beat_and_go(self, store: Store) -> None:
        assert await store.registered_engines() == []
        first, second = (
            RegisteredEngine(
                address=f"tcp://gpu{n}:7300", added_at=1.0, beat_at=1.0, fingerprint="ab"
            )
            for n in (2, 1)
        )
        by_hand = RegisteredEngine(address="/run/é 🌱.sock", added_at=2.0)
        for engine in (first, by_hand, second):
            await store.register_engine(engine)
        assert await store.registered_engines() == [by_hand, second, first]
        await store.register_engine(replace(first, added_at=9.0, beat_at=9.0))
        assert (await store.registered_engines())[2] == replace(first, beat_at=9.0)
        await store.forget_engine(second.address)
        with pytest.raises(NotFound):
            await store.forget_engine(second.address)
        assert [one.address for one in await store.registered_engines()] == [
            by_hand.address,
            first.address,
        ]

    async def test_of_flushes_the_last_of_each_tenant_counts_until_all_is_flushed(
        self, store: Store
    ) -> None:
        assert await store.flushes() == []
        first, again, other = (
            CacheFlush.new(tenant, at=at) for tenant, at in (("a", 1.0), ("a", 3.0), ("é 🌱", 2.0))
        )
        for flush in (first, other, again):
            await store.add_flush(flush)
        assert await store.flushes() == [other, again]
        assert len({first.id, again.id, other.id}) == 3
        everything = CacheFlush.new(None, at=4.0)
        await store.add_flush(everything)
        assert await store.flushes() == [everything]
        later = CacheFlush.new("a", at=5.0)
        await store.add_flush(later)
        assert await store.flushes() == [everything, later]

    async def test_flushes_are_folded_unless_all_was_flushed_later(self, store: Store) -> None:
        tenants = [f"t{number}" for number in range(2500)]
        for number, tenant in enumerate(tenants[:4]):
            await store.add_flush(CacheFlush.new(tenant, at=float(number)))
        _, _, third, fourth = await store.flushes()
        into = replace(third, tenant_id=None)
        await store.fold_flushes(into, [*tenants[:3], *tenants[4:]])
        assert await store.flushes() == [into, fourth]
        again = replace(fourth, tenant_id=None)
        await store.fold_flushes(again, ["t3"])
        assert await store.flushes() == [again]
        everything = CacheFlush.new(None, at=9.0)
        await store.add_flush(everything)
        await store.add_flush(last := CacheFlush.new("t5", at=8.0))
        await store.fold_flushes(replace(last, tenant_id=None), ["t5"])
        assert await store.flushes() == [last, everything], "it came in between"

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
        tenants = await store.every(Tenant)
        assert {t.id: t for t in tenants} == model.tenants
        stored = [key for tenant in tenants for key in await store.list_keys(tenant.id)]
        assert {key.id: key for key in stored} == model.keys
        assert model.keys  # positive control: not everything was deleted


async def _random_change(store: Store, rng: random.Random) -> str:
    """Make a random change under one of a few names, so that names collide; return its outcome."""
    tenant = replace(a_tenant(rng.choice("abcd")), weight=float(rng.randrange(1, 5)))
    tenant = replace(tenant, name=rng.choice("abcd"))
    key = replace(a_key(a_tenant(rng.choice("abcd")), rng.randrange(4)), tenant_id=tenant.id)
    changes: list[Callable[[], Awaitable[object]]] = [
        lambda: store.create(tenant),
        lambda: put(store, tenant),
        lambda: store.create(key),
        lambda: store.create(key),
        lambda: put(store, replace(key, expires_at=rng.random())),
        lambda: put(store, replace(key, revoked_at=rng.random())),
        lambda: store.delete(Tenant, tenant.id),
    ]
    [change] = rng.choices(changes, weights=[6, 6, 6, 6, 6, 2, 1])
    try:
        await change()
    except (Conflict, NotFound):
        return "refused"  # if both errors apply, either may be raised
    return "done"
