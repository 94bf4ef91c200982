from __future__ import annotations

from typing import Any

import pytest

from gateway.admin.audit import AuditTrail
from gateway.errors import Unavailable
from gateway.state.records import AuditEntry
from tests.gateway.admin.office import Office, body, error_of
from tests.gateway.state.memory_store import MemoryStore
from tests.gateway.support.manual_clock import ManualClock


class FullLog(MemoryStore):
    """A store whose audit log accepts no entries."""

    async def append_audit(self, entry: AuditEntry) -> None:
        raise Unavailable("full")


async def entries(office: Office, **query: int) -> list[dict[str, Any]]:
    answer = await office.operator.get("/admin/audit", params=query)
    assert answer.status_code == 200
    found: list[dict[str, Any]] = body(answer)["entries"]
    return found


async def test_every_change_is_noted_newest_first(office: Office) -> None:
    acme = await office.tenant()
    key = await office.key(acme["id"])
    keys = f"/admin/tenants/{acme['id']}/keys"
    successor = body(
        await office.operator.post(f"{keys}/{key['record']['id']}/rotate", json={"overlap_s": 9})
    )
    await office.operator.delete(f"{keys}/{successor['record']['id']}")
    friends = body(await office.operator.post("/admin/groups", json={"name": "friends"}))
    await office.operator.patch(f"/admin/groups/{friends['id']}", json={"name": "family"})
    await office.operator.patch(f"/admin/tenants/{acme['id']}", json={"weight": 2})
    await office.operator.post(f"/admin/tenants/{acme['id']}/disable")
    await office.operator.post(f"/admin/tenants/{acme['id']}/enable")
    await office.operator.post("/admin/cache/flush", json={"tenant": acme["id"]})
    await office.operator.post("/admin/cache/flush")
    await office.operator.delete(f"/admin/groups/{friends['id']}")
    await office.operator.delete(f"/admin/tenants/{acme['id']}")
    noted = await entries(office)
    assert [(entry["action"], entry["target"]) for entry in noted][::-1] == [
        ("tenant.create", acme["id"]),
        ("key.create", key["record"]["id"]),
        ("key.rotate", key["record"]["id"]),
        ("key.revoke", successor["record"]["id"]),
        ("group.create", friends["id"]),
        ("group.update", friends["id"]),
        ("tenant.update", acme["id"]),
        ("tenant.update", acme["id"]),
        ("tenant.update", acme["id"]),
        ("cache.flush", acme["id"]),
        ("cache.flush", "everything"),
        ("group.delete", friends["id"]),
        ("tenant.delete", acme["id"]),
    ]
    assert {entry["actor"] for entry in noted} == {"operator"}
    assert noted[6]["detail"] == {"weight": 2.0}
    assert all(entry["time"] == office.clock.now for entry in noted)


async def test_no_entry_holds_a_key(office: Office) -> None:
    acme = await office.tenant()
    issued = await office.key(acme["id"])
    answer = await office.operator.get("/admin/audit")
    assert issued["record"]["id"] in answer.text
    for secret in (issued["key"], issued["key"][3:], office.admin_key):
        assert secret not in answer.text


async def test_what_was_refused_is_not_noted(office: Office) -> None:
    await office.tenant()
    before = await entries(office)
    await office.operator.post("/admin/tenants", json={"name": "acme"})
    await office.operator.delete("/admin/tenants/tn_none")
    await office.operator.post("/admin/groups", json={"name": " "})
    assert await entries(office) == before
    assert len(before) == 1


async def test_the_listing_is_bounded_and_can_be_paged(office: Office) -> None:
    for number in range(5):
        await office.tenant(f"t{number}")
    names = [entry["detail"]["name"] for entry in await entries(office, limit=2, skip=1)]
    assert names == ["t3", "t2"]
    for bad in ({"limit": 0}, {"limit": 1001}, {"skip": -1}):
        answer = await office.operator.get("/admin/audit", params=bad)
        assert error_of(answer)[0] == 400


async def test_a_change_stands_when_its_entry_cannot_be_stored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await AuditTrail(FullLog(), ManualClock()).note("tenant.create", "tn_1", name="acme")
    assert "tenant.create of tn_1" in caplog.text
