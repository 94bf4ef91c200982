"""`/admin/receipts`: a deleted tenant's erasure gets a signed receipt, which the audit log
keeps.
"""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from engine.link.erasure import Erasure, TierErasure
from gateway.auth.running_requests import GROUP_KNOWN_S
from gateway.receipts.signing import verified
from gateway.state.records import ResponseRoom
from tests.gateway.admin.office import Office, body, error_of
from tests.gateway.state.contract import a_response, a_schema, a_tenant

OVER = Erasure(tiers=(TierErasure(tier="device", blocks=7, num_bytes=448),), running=0, disk="none")
ROOM = ResponseRoom(of_one=1 << 20, of_tenant=1 << 20, of_all=1 << 20)


async def test_a_deleted_tenant_s_receipt_counts_what_went_and_is_in_the_log(
    office: Office,
) -> None:
    office.engine.erasure = OVER
    tenant = await office.tenant("acme")
    await office.key(tenant["id"])
    response = replace(a_response(a_tenant()), tenant_id=tenant["id"], expires_at=2e9)
    await office.store.keep_response(response, ROOM)
    for number in (1, 2):
        schema = replace(a_schema(a_tenant(), number), tenant_id=tenant["id"])
        await office.store.keep_schema(schema)
    await office.operator.delete(f"/admin/tenants/{tenant['id']}")
    office.clock.advance(GROUP_KNOWN_S)
    answer = await office.operator.post("/admin/receipts", json={"tenant": tenant["id"]})
    key = body(await office.operator.get("/admin/receipts/key"))["public_key"]
    receipt = verified(answer.content, key)
    assert receipt.is_complete
    assert (receipt.name, receipt.keys) == ("acme", 1)
    assert (receipt.responses, receipt.schemas) == (1, 2)
    assert receipt.by == "operator"
    [entry, *_] = body(await office.operator.get("/admin/audit"))["entries"]
    assert (entry["action"], entry["target"]) == ("tenant.receipt", tenant["id"])
    assert verified(json.dumps(entry["detail"]).encode(), key) == receipt


@pytest.mark.parametrize("names", [(), ("support",), ("support", "sales")], ids=len)
async def test_a_receipt_counts_adapters_and_says_that_their_files_stay(
    office: Office, names: tuple[str, ...]
) -> None:
    tenant = (await office.tenant("acme"))["id"]
    for name in names:
        path = f"/admin/tenants/{tenant}/adapters"
        await office.operator.post(path, json={"name": name, "path": name})
    await office.operator.delete(f"/admin/tenants/{tenant}")
    answer = await office.operator.post("/admin/receipts", json={"tenant": tenant})
    receipt = body(answer)["receipt"]
    assert receipt["adapters"] == len(names)
    assert ("adapters' files" in receipt["kept"]) == bool(names)


async def test_an_adapter_s_blocks_stay_while_it_has_another_name(office: Office) -> None:
    tenant = (await office.tenant("acme"))["id"]
    path = f"/admin/tenants/{tenant}/adapters"
    for name in ("one", "two"):
        await office.operator.post(path, json={"name": name, "path": "support"})
    assert body(await office.operator.delete(f"{path}/one"))["flushed_blocks"] == 0
    assert body(await office.operator.delete(f"{path}/two"))["flushed_blocks"] == 3, "the control"


@pytest.mark.parametrize("tenant", ["tn_nobody", "", "\x00"])
async def test_an_unknown_tenant_has_no_receipt(office: Office, tenant: str) -> None:
    answer = await office.operator.post("/admin/receipts", json={"tenant": tenant})
    assert error_of(answer)[0] == 404


async def test_a_living_tenant_has_no_receipt(office: Office) -> None:
    tenant = await office.tenant("acme")
    await office.operator.post("/admin/cache/flush", json={"tenant": tenant["id"]})
    answer = await office.operator.post("/admin/receipts", json={"tenant": tenant["id"]})
    assert error_of(answer)[0] == 404


@pytest.mark.parametrize("wait_s", [-1, 21, "1", None])
async def test_a_bad_wait_is_refused(office: Office, wait_s: object) -> None:
    answer = await office.operator.post(
        "/admin/receipts", json={"tenant": "tn_a", "wait_s": wait_s}
    )
    assert error_of(answer) == (400, "invalid_value", "wait_s")
