from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import Unavailable
from gateway.state.records import CacheFlush
from tests.gateway.admin.office import Office, body, error_of, open_office


async def test_a_tenant_is_made_shown_and_listed(office: Office) -> None:
    made = await office.tenant("acme", weight=2.5)
    assert made == {
        "id": made["id"],
        "name": "acme",
        "created_at": office.clock.now,
        "disabled": False,
        "weight": 2.5,
        "group_id": None,
        "priority": "interactive",
        "target_itl_ms": 0.0,
        "limits": {},
        "cache": {},
        "usage_tiers": False,
        "canonical_prompts": False,
        "adapters": [],
        "max_own_adapters": 0,
    }
    office.clock.advance(1)
    other = await office.tenant("other")
    assert body(await office.operator.get(f"/admin/tenants/{made['id']}")) == made
    assert body(await office.operator.get("/admin/tenants")) == {"tenants": [made, other]}
    assert made["id"] != other["id"]
    assert other["weight"] == 1.0


BAD_BODIES: list[tuple[Any, str | None]] = [
    ({"name": ""}, "name"),
    ({"name": "x" * 129}, "name"),
    ({"name": 1}, "name"),
    ({"name": None}, "name"),
    ({"name": "a\nb"}, "name"),
    ({"name": "a\x00b"}, "name"),
    ({"name": "a\x1b[31m"}, "name"),
    ({"name": " a"}, "name"),
    ({"name": "a", "weight": 0}, "weight"),
    ({"name": "a", "weight": -1}, "weight"),
    ({"name": "a", "weight": 1001}, "weight"),
    ({"name": "a", "weight": "2"}, "weight"),
    ({"name": "a", "weight": True}, "weight"),
    ({"name": "a", "target_itl_ms": -1}, "target_itl_ms"),
    ({"name": "a", "target_itl_ms": 60_001}, "target_itl_ms"),
    ({"name": "a", "id": "tn_mine"}, "id"),
    ({"name": "a", "wieght": 2}, "wieght"),
    ([], None),
    ("a", None),
]


async def test_a_bad_body_is_refused_by_field(office: Office) -> None:
    for content, param in BAD_BODIES:
        answer = await office.operator.post("/admin/tenants", json=content)
        assert error_of(answer) == (400, "invalid_value", param), content
    assert body(await office.operator.get("/admin/tenants")) == {"tenants": []}


async def test_a_taken_name_is_a_conflict(office: Office) -> None:
    await office.tenant("acme")
    answer = await office.operator.post("/admin/tenants", json={"name": "acme"})
    assert error_of(answer)[:2] == (409, "conflict")
    other = await office.tenant("other")
    answer = await office.operator.patch(f"/admin/tenants/{other['id']}", json={"name": "acme"})
    assert error_of(answer)[:2] == (409, "conflict")


async def test_a_name_has_one_spelling(office: Office) -> None:
    made = await office.tenant("cafe\u0301")
    assert made["name"] == "caf\u00e9"
    answer = await office.operator.post("/admin/tenants", json={"name": "caf\u00e9"})
    assert error_of(answer)[:2] == (409, "conflict")
    assert (await office.tenant("cafe"))["name"] == "cafe", "the control"


@pytest.mark.parametrize(
    "change",
    [{}, {"name": "new"}, {"weight": 3.0}, {"disabled": True}, {"name": "b", "weight": 0.5}],
    ids=str,
)
async def test_patch_changes_what_it_names_and_nothing_else(
    office: Office, change: dict[str, Any]
) -> None:
    made = await office.tenant("acme", weight=2.0)
    answer = await office.operator.patch(f"/admin/tenants/{made['id']}", json=change)
    assert answer.status_code == 200
    assert body(answer) == {**made, **change}
    assert body(await office.operator.get(f"/admin/tenants/{made['id']}")) == {**made, **change}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"disabled": 1}, "disabled"),
        ({"disabled": None}, "disabled"),
        ({"name": "x\ty"}, "name"),
        ({"weight": 0}, "weight"),
        ({"created_at": 0}, "created_at"),
        ({"id": "tn_other"}, "id"),
    ],
    ids=str,
)
async def test_a_bad_patch_changes_nothing(
    office: Office, change: dict[str, Any], param: str | None
) -> None:
    made = await office.tenant()
    answer = await office.operator.patch(f"/admin/tenants/{made['id']}", json=change)
    assert error_of(answer) == (400, "invalid_value", param)
    assert body(await office.operator.get(f"/admin/tenants/{made['id']}")) == made


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("PATCH", ""),
        ("DELETE", ""),
        ("POST", "/disable"),
        ("POST", "/enable"),
        ("GET", "/keys"),
        ("POST", "/keys"),
        ("POST", "/keys/key_none/rotate"),
        ("DELETE", "/keys/key_none"),
    ],
)
async def test_a_missing_tenant_is_not_found(office: Office, method: str, path: str) -> None:
    answer = await office.operator.request(method, f"/admin/tenants/tn_none{path}")
    assert error_of(answer)[:2] == (404, "not_found")
    assert office.engine.flushes == []


async def test_disabling_works_at_once_flushes_and_can_be_taken_back(office: Office) -> None:
    tenant, bystander = await office.tenant("acme"), await office.tenant("bystander")
    key = (await office.key(tenant["id"]))["key"]
    other_key = (await office.key(bystander["id"]))["key"]
    assert (await office.me(key)).status_code == 200
    disabled = await office.operator.post(f"/admin/tenants/{tenant['id']}/disable")
    assert body(disabled)["disabled"] is True
    assert error_of(await office.me(key))[:2] == (403, "tenant_disabled")
    assert (await office.me(other_key)).status_code == 200
    assert office.engine.flushes == [tenant["id"]]
    enabled = await office.operator.post(f"/admin/tenants/{tenant['id']}/enable")
    assert body(enabled) == tenant
    assert (await office.me(key)).status_code == 200
    assert office.engine.flushes == [tenant["id"]]


async def test_disabling_by_patch_flushes_too(office: Office) -> None:
    tenant = await office.tenant()
    await office.operator.patch(f"/admin/tenants/{tenant['id']}", json={"disabled": True})
    assert office.engine.flushes == [tenant["id"]]


async def test_a_tenant_s_blocks_go_when_its_group_changes(office: Office) -> None:
    """Flush a tenant's blocks when its group changes.

    From a hit on its old blocks, the tenant could learn that its former group read what it had
    written.
    """
    groups = [
        body(await office.operator.post("/admin/groups", json={"name": name}))["id"]
        for name in ("first", "second")
    ]
    tenant = (await office.tenant())["id"]
    flushes = 0
    for group, is_change in (*((one, True) for one in groups), (groups[1], False), (None, True)):
        change = {"group_id": group, "weight": 2.0}
        assert (await office.operator.patch(f"/admin/tenants/{tenant}", json=change)).is_success
        flushes += is_change
        assert office.engine.flushes == [tenant] * flushes, group
        [due] = await office.store.flushes()
        has_left = flushes > 1  # before its first change the tenant had no group
        assert (due.again_s is not None) == has_left, "once all gateways know of the change"


async def test_what_is_due_is_recorded_before_the_group_changes(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Record a pending flush before the group changes.

    If the process ends in between, the tenant is still in its old group.
    """
    group = body(await office.operator.post("/admin/groups", json={"name": "first"}))["id"]
    tenant = (await office.tenant(group_id=group))["id"]

    async def away(flush: CacheFlush) -> None:
        raise Unavailable("away")

    path = f"/admin/tenants/{tenant}"
    with monkeypatch.context() as patched:
        patched.setattr(office.store, "add_flush", away)
        answer = await office.operator.patch(path, json={"group_id": None})
        assert error_of(answer)[0] == 503
        assert body(await office.operator.get(path))["group_id"] == group
    assert body(await office.operator.patch(path, json={"group_id": None}))["group_id"] is None


@pytest.mark.parametrize("fails", ["add_flush", "delete"])
async def test_an_erasure_is_recorded_before_the_tenant_is_deleted(
    office: Office, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """Record an erasure before its tenant is deleted.

    Otherwise a deleted tenant's blocks could stay in the cache without a receipt.
    """
    tenant = (await office.tenant())["id"]
    path, order = f"/admin/tenants/{tenant}", {"tenant": tenant}

    async def away(*_: object) -> None:
        raise Unavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(office.store, fails, away)
        assert error_of(await office.operator.delete(path))[0] == 503
    assert error_of(await office.operator.post("/admin/receipts", json=order))[0] == 404
    assert (await office.operator.get(path)).is_success
    assert (await office.operator.delete(path)).is_success
    receipt = await office.operator.post("/admin/receipts", json=order)
    assert office.engine.flushes[0] == tenant
    assert body(receipt)["receipt"]["tenant"] == tenant


async def test_a_change_of_weight_is_seen_by_the_next_request(office: Office) -> None:
    tenant = await office.tenant()
    key = (await office.key(tenant["id"]))["key"]
    assert body(await office.me(key))["weight"] == 1.0
    change = {"name": "new", "weight": 4.0}
    await office.operator.patch(f"/admin/tenants/{tenant['id']}", json=change)
    assert body(await office.me(key)) == {"id": tenant["id"], "weight": 4.0}
    assert office.engine.flushes == []


async def test_deleting_ends_keys_and_cache_of_that_tenant_alone(office: Office) -> None:
    tenant, bystander = await office.tenant("acme"), await office.tenant("bystander")
    key = (await office.key(tenant["id"]))["key"]
    other_key = (await office.key(bystander["id"]))["key"]
    assert (await office.me(key)).status_code == 200
    answer = await office.operator.delete(f"/admin/tenants/{tenant['id']}")
    assert body(answer) == {"id": tenant["id"], "flushed_blocks": 14, "awaited": []}
    assert (await office.me(key)).status_code == 401
    assert (await office.me(other_key)).status_code == 200
    assert office.engine.flushes == [tenant["id"]] * 2, "each drops 7 blocks"
    assert body(await office.operator.get("/admin/tenants")) == {"tenants": [bystander]}
    # the new tenant of the same name does not inherit the cache
    assert (await office.tenant("acme"))["id"] != tenant["id"]


async def test_changes_stand_while_no_engine_is_there(office: Office) -> None:
    first, second = await office.tenant("first"), await office.tenant("second")
    office.engine.connected = False
    disabled = await office.operator.post(f"/admin/tenants/{first['id']}/disable")
    assert body(disabled)["disabled"] is True
    deleted = await office.operator.delete(f"/admin/tenants/{second['id']}")
    assert body(deleted) == {"id": second["id"], "flushed_blocks": None, "awaited": ["0"]}
    assert body(await office.operator.get("/admin/tenants"))["tenants"] == [body(disabled)]


async def test_changes_at_once_do_not_undo_each_other(office: Office) -> None:
    tenant = await office.tenant()
    path = f"/admin/tenants/{tenant['id']}"
    await asyncio.gather(
        office.operator.patch(path, json={"name": "renamed"}),
        office.operator.post(f"{path}/disable"),
        office.operator.patch(path, json={"weight": 9.0}),
    )
    after = body(await office.operator.get(path))
    assert (after["name"], after["disabled"], after["weight"]) == ("renamed", True, 9.0)


async def test_changes_by_two_gateways_do_not_undo_each_other(tmp_path: Path) -> None:
    async with open_office(tmp_path) as one, open_office(tmp_path) as other:
        tenant = await one.tenant()
        path = f"/admin/tenants/{tenant['id']}"
        for weight in range(1, 11):
            await one.operator.post(f"{path}/enable")
            disabled, *_ = await asyncio.gather(
                one.operator.post(f"{path}/disable"),
                *(other.operator.patch(path, json={"weight": weight}) for _ in range(3)),
            )
            assert body(disabled)["disabled"] is True
            after = body(await other.operator.get(path))
            assert (after["disabled"], after["weight"]) == (True, weight)
