from __future__ import annotations

import pytest

from tests.gateway.admin.office import Office, body, error_of


async def group(office: Office, name: str = "friends") -> str:
    answer = await office.operator.post("/admin/groups", json={"name": name})
    assert answer.status_code == 201
    return str(body(answer)["id"])


async def test_a_group_is_made_shown_renamed_and_deleted(office: Office) -> None:
    group_id = await group(office)
    office.clock.advance(1)
    other = await group(office, "others")
    listed = body(await office.operator.get("/admin/groups"))["groups"]
    assert [(g["id"], g["name"]) for g in listed] == [(group_id, "friends"), (other, "others")]
    renamed = await office.operator.patch(f"/admin/groups/{group_id}", json={"name": "family"})
    assert body(renamed)["name"] == "family"
    assert body(await office.operator.get(f"/admin/groups/{group_id}"))["name"] == "family"
    taken = await office.operator.patch(f"/admin/groups/{group_id}", json={"name": "others"})
    assert error_of(taken)[:2] == (409, "conflict")
    assert (await office.operator.delete(f"/admin/groups/{group_id}")).status_code == 200
    gone = await office.operator.get(f"/admin/groups/{group_id}")
    assert error_of(gone)[:2] == (404, "not_found")


@pytest.mark.parametrize(
    ("sent", "param"), [({}, "name"), ({"name": ""}, "name"), ({"name": " a"}, "name")]
)
async def test_a_group_needs_a_name(
    office: Office, sent: dict[str, str], param: str | None
) -> None:
    answer = await office.operator.post("/admin/groups", json=sent)
    assert answer.status_code == 400
    assert error_of(answer)[2] == param
    assert body(await office.operator.get("/admin/groups"))["groups"] == []


async def test_a_tenant_enters_and_leaves_a_group(office: Office) -> None:
    group_id = await group(office)
    born_in = await office.tenant("born-in", group_id=group_id)
    joins = await office.tenant("joins")
    assert (born_in["group_id"], joins["group_id"]) == (group_id, None)
    place = f"/admin/tenants/{joins['id']}"
    joined = await office.operator.patch(place, json={"group_id": group_id})
    assert body(joined)["group_id"] == group_id
    kept = await office.operator.patch(place, json={"weight": 2})
    assert body(kept)["group_id"] == group_id
    full = await office.operator.delete(f"/admin/groups/{group_id}")
    assert error_of(full)[:2] == (409, "conflict")
    left = await office.operator.patch(place, json={"group_id": None})
    assert body(left)["group_id"] is None
    await office.operator.delete(f"/admin/tenants/{born_in['id']}")
    assert (await office.operator.delete(f"/admin/groups/{group_id}")).status_code == 200


async def test_joining_an_unknown_group_is_404(office: Office) -> None:
    answer = await office.operator.post(
        "/admin/tenants", json={"name": "acme", "group_id": "gr_none"}
    )
    assert error_of(answer)[:2] == (404, "not_found")
    acme = await office.tenant()
    answer = await office.operator.patch(
        f"/admin/tenants/{acme['id']}", json={"group_id": "gr_none"}
    )
    assert error_of(answer)[:2] == (404, "not_found")


async def test_a_caller_brings_its_group(office: Office) -> None:
    group_id = await group(office)
    acme = await office.tenant(group_id=group_id)
    key = await office.key(acme["id"])
    caller = await office.keyring.identify(key["key"])
    assert caller.group_id == group_id
    await office.operator.patch(f"/admin/tenants/{acme['id']}", json={"group_id": None})
    assert (await office.keyring.identify(key["key"])).group_id is None
