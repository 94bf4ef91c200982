"""The engine gets the tenants' cache shares whenever the operator changes them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from engine.link.messages import FlowQuota
from gateway.sharing.partitions import Partitions, divided
from gateway.state.records import Tenant
from gateway.state.sqlite.store import SqliteStore
from gateway.tenant_limits import CacheQuota, Limits
from tests.gateway.admin.office import Office, body, open_office
from tests.gateway.support.operated_engine import OperatedEngine


def tenant(name: str, *, disabled: bool = False, weight: float = 1.0) -> Tenant:
    cache = CacheQuota(floor=0.2, ceiling=0.5)
    return Tenant(id=name, name=name, created_at=0, disabled=disabled, weight=weight, cache=cache)


def test_every_tenant_that_may_ask_has_a_part() -> None:
    tenants = [tenant("a"), tenant("b", weight=2), tenant("c", disabled=True)]
    assert divided(tenants) == {"a": FlowQuota(0.2, 0.5, 1), "b": FlowQuota(0.2, 0.5, 2)}


def test_the_bound_on_a_request_goes_with_the_part() -> None:
    short = msgspec.structs.replace(tenant("a"), limits=Limits(max_request_tokens=500))
    flows = divided([short, tenant("b")])
    assert [flows[one].max_request_tokens for one in "ab"] == [500, 0]


def test_one_alone_shares_with_nobody() -> None:
    assert divided([tenant("a"), tenant("b", disabled=True)]) == {}


async def test_what_the_operator_does_is_told_before_the_answer(tmp_path: Path) -> None:
    async with open_office(tmp_path) as office:
        one = await office.tenant("one")
        assert office.engine.flows == {}
        two = await office.tenant("two", weight=3)
        assert _weights(office) == {one["id"]: 1, two["id"]: 3}
        url = f"/admin/tenants/{one['id']}"
        body(await office.operator.patch(url, json={"cache": {"floor": 0.25}}))
        assert office.engine.flows is not None
        assert office.engine.flows[one["id"]] == FlowQuota(floor=0.25)
        body(await office.operator.post(f"{url}/disable"))
        assert office.engine.flows == {}
        body(await office.operator.post(f"{url}/enable"))
        assert _weights(office) == {one["id"]: 1, two["id"]: 3}
        body(await office.operator.delete(url))
        assert office.engine.flows == {}


@pytest.mark.parametrize("are_wanted", [True, False])
async def test_the_first_division_is_told_at_the_start(tmp_path: Path, are_wanted: bool) -> None:
    store, engine = SqliteStore(tmp_path / "state.sqlite"), OperatedEngine()
    for name in ("a", "b"):
        await store.create(tenant(name))
    async with Partitions(store, engine, are_wanted=are_wanted).kept():
        assert engine.flows is not None
        assert set(engine.flows) == ({"a", "b"} if are_wanted else set())
    await store.close()


def _weights(office: Office) -> dict[str, float]:
    assert office.engine.flows is not None
    return {flow: quota.weight for flow, quota in office.engine.flows.items()}
