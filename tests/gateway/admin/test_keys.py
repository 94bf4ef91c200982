from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.admin.office import Office, body, error_of


async def test_a_key_is_shown_once_and_opens(office: Office) -> None:
    tenant = await office.tenant()
    issued = await office.key(tenant["id"])
    assert (await office.me(issued["key"])).json()["id"] == tenant["id"]
    record = issued["record"]
    assert record == {
        "id": record["id"],
        "tenant_id": tenant["id"],
        "hint": f"{issued['key'][:7]}...{issued['key'][-4:]}",
        "created_at": office.clock.now,
        "expires_at": None,
        "revoked_at": None,
        "live": True,
    }
    listed = await office.operator.get(f"/admin/tenants/{tenant['id']}/keys")
    assert body(listed) == {"keys": [record]}
    assert issued["key"] not in listed.text
    assert office.keyring.digest(issued["key"]).hex() not in listed.text


async def test_no_answer_with_a_key_may_be_kept_by_a_cache(office: Office) -> None:
    tenant = await office.tenant()
    answer = await office.operator.post(f"/admin/tenants/{tenant['id']}/keys")
    assert answer.status_code == 201  # a missing body counts as an empty body
    assert answer.headers["cache-control"] == "no-store"


async def test_a_key_with_an_end_ends(office: Office) -> None:
    tenant = await office.tenant()
    issued = await office.key(tenant["id"], expires_at=office.clock.now + 60)
    assert (await office.me(issued["key"])).status_code == 200
    office.clock.advance(60)
    assert (await office.me(issued["key"])).status_code == 401
    listed = body(await office.operator.get(f"/admin/tenants/{tenant['id']}/keys"))
    assert listed["keys"] == [{**issued["record"], "live": False}]


@pytest.mark.parametrize(
    ("content", "param"),
    [
        ({"expires_at": 1.0}, "expires_at"),  # a time in the past
        ({"expires_at": -1}, "expires_at"),
        ({"expires_at": 1e300}, "expires_at"),
        ({"expires_at": "tomorrow"}, "expires_at"),
        ({"expires_in": 5}, "expires_in"),
        ({"key": "sk-mine"}, "key"),
    ],
    ids=str,
)
async def test_a_bad_order_makes_no_key(
    office: Office, content: dict[str, Any], param: str | None
) -> None:
    tenant = await office.tenant()
    path = f"/admin/tenants/{tenant['id']}/keys"
    answer = await office.operator.post(path, json=content)
    assert error_of(answer) == (400, "invalid_value", param)
    assert body(await office.operator.get(path)) == {"keys": []}


async def test_rotation_with_and_without_overlap(office: Office) -> None:
    tenant = await office.tenant()
    first = await office.key(tenant["id"])
    path = f"/admin/tenants/{tenant['id']}/keys"
    answer = await office.operator.post(
        f"{path}/{first['record']['id']}/rotate", json={"overlap_s": 60}
    )
    assert answer.status_code == 201
    second = body(answer)
    assert (await office.me(first["key"])).status_code == 200
    assert (await office.me(second["key"])).status_code == 200
    office.clock.advance(60)
    assert (await office.me(first["key"])).status_code == 401
    third = body(await office.operator.post(f"{path}/{second['record']['id']}/rotate"))
    assert (await office.me(second["key"])).status_code == 401
    assert (await office.me(third["key"])).status_code == 200


@pytest.mark.parametrize("overlap", [-1, 1e9, "60", None, True], ids=str)
async def test_a_bad_overlap_rotates_nothing(office: Office, overlap: Any) -> None:
    tenant = await office.tenant()
    issued = await office.key(tenant["id"])
    path = f"/admin/tenants/{tenant['id']}/keys"
    answer = await office.operator.post(
        f"{path}/{issued['record']['id']}/rotate", json={"overlap_s": overlap}
    )
    assert error_of(answer) == (400, "invalid_value", "overlap_s")
    assert body(await office.operator.get(path)) == {"keys": [issued["record"]]}


async def test_a_revoked_key_is_closed_stays_listed_and_cannot_be_rotated(office: Office) -> None:
    tenant = await office.tenant()
    issued, other = await office.key(tenant["id"]), await office.key(tenant["id"])
    assert (await office.me(issued["key"])).status_code == 200
    path = f"/admin/tenants/{tenant['id']}/keys"
    revoked = await office.operator.delete(f"{path}/{issued['record']['id']}")
    assert body(revoked) == {**issued["record"], "revoked_at": office.clock.now, "live": False}
    assert (await office.me(issued["key"])).status_code == 401
    assert (await office.me(other["key"])).status_code == 200
    assert body(await office.operator.get(path))["keys"] == [body(revoked), other["record"]]
    answer = await office.operator.post(f"{path}/{issued['record']['id']}/rotate")
    assert error_of(answer)[:2] == (409, "conflict")


async def test_a_key_is_reached_through_its_own_tenant_alone(office: Office) -> None:
    owner, other = await office.tenant("owner"), await office.tenant("other")
    issued = await office.key(owner["id"])
    path = f"/admin/tenants/{other['id']}/keys/{issued['record']['id']}"
    assert error_of(await office.operator.delete(path))[0] == 404
    assert error_of(await office.operator.post(f"{path}/rotate"))[0] == 404
    assert (await office.me(issued["key"])).status_code == 200


async def test_a_missing_key_is_not_found(office: Office) -> None:
    tenant = await office.tenant()
    path = f"/admin/tenants/{tenant['id']}/keys/key_none"
    assert error_of(await office.operator.delete(path))[0] == 404
    assert error_of(await office.operator.post(f"{path}/rotate"))[0] == 404
