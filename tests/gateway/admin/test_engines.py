from __future__ import annotations

import pytest

from engine.link.interface import ReplicaHealth
from gateway.admin.engines import SILENT_S
from gateway.state.records import RegisteredEngine
from tests.gateway.admin.office import Office, body, error_of

PLACE = "/admin/engines"
BY_HAND, ITSELF = "tcp://gpu1:7300", "tcp://gpu2:7300"


async def listed(office: Office) -> dict[str, str | None]:
    engines = body(await office.operator.get(PLACE))["engines"]
    return {one["address"]: one["state"] for one in engines}


async def test_an_engine_is_added_shown_and_removed_and_the_log_says_so(office: Office) -> None:
    added = await office.operator.post(PLACE, json={"address": BY_HAND})
    assert added.status_code == 201
    assert (body(added)["beat_at"], body(added)["state"]) == (None, None)
    office.engine.replicas = {"gpu1:7300": ReplicaHealth("ready", "")}
    assert await listed(office) == {BY_HAND: "ready"}
    again = await office.operator.post(PLACE, json={"address": BY_HAND})
    assert error_of(again)[:2] == (409, "conflict")
    assert (await office.operator.delete(f"{PLACE}/tcp:%2F%2Fgpu1:7300")).status_code == 200
    assert await listed(office) == {}
    assert error_of(await office.operator.delete(f"{PLACE}/{BY_HAND}"))[0] == 404
    actions = [(one.action, one.target) for one in await office.store.list_audit(limit=9)]
    assert actions == [("engine.remove", BY_HAND), ("engine.add", BY_HAND)]


async def test_one_that_registers_itself_is_removed_only_once_it_is_silent(office: Office) -> None:
    await office.store.register_engine(
        RegisteredEngine(address=ITSELF, added_at=1.0, beat_at=office.clock())
    )
    refused = await office.operator.delete(f"{PLACE}/{ITSELF}")
    assert error_of(refused)[:2] == (409, "conflict")
    office.clock.advance(SILENT_S)
    assert (await office.operator.delete(f"{PLACE}/{ITSELF}")).status_code == 200


@pytest.mark.parametrize(
    "address", ["", "engine.sock", "tcp://gpu1", "tcp://gpu1:65535", "tcp://u@gpu1:1", "/a\n", 7]
)
async def test_what_is_no_address_is_refused(office: Office, address: object) -> None:
    answer = await office.operator.post(PLACE, json={"address": address})
    assert error_of(answer)[0] == 400
    assert error_of(answer)[2] == "address"
    assert await listed(office) == {}
