from __future__ import annotations

import pytest

from engine.link.interface import ReplicaHealth
from gateway.http.health import health_router
from gateway.state.faults import Fault, damaged, gone, no_room
from tests.gateway.support.operated_engine import OperatedEngine
from tests.gateway.support.small_app import client_of, small_app


async def test_alive_and_ready_with_an_engine() -> None:
    async with client_of(small_app(health_router(OperatedEngine(), lambda: None))) as http:
        for path in ("/healthz", "/readyz"):
            assert (await http.get(path)).status_code == 200


async def test_alive_but_not_ready_without_one_and_ready_again() -> None:
    engine = OperatedEngine()
    engine.connected = False
    async with client_of(small_app(health_router(engine, lambda: None))) as http:
        assert (await http.get("/healthz")).status_code == 200
        answer = await http.get("/readyz")
        assert answer.status_code == 503
        assert answer.json() == {"status": "not_ready", "reason": "no engine is connected"}
        engine.connected = True
        assert (await http.get("/readyz")).status_code == 200


async def test_a_hanging_engine_does_not_hang_the_checks() -> None:
    engine = OperatedEngine()
    engine.hangs = True
    async with client_of(small_app(health_router(engine, lambda: None))) as http:
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/readyz")).status_code == 200


async def test_not_ready_while_the_engine_s_process_stands_still() -> None:
    engine = OperatedEngine()
    engine.is_stalled = True
    async with client_of(small_app(health_router(engine, lambda: None))) as http:
        assert (await http.get("/healthz")).status_code == 200
        answer = await http.get("/readyz")
        assert answer.status_code == 503
        assert answer.json() == {"status": "stalled", "reason": "the engine does not answer"}
        engine.is_stalled = False
        assert (await http.get("/readyz")).status_code == 200


async def test_one_of_several_engines_is_enough_and_each_is_named() -> None:
    engine = OperatedEngine()
    engine.replicas = {
        "0": ReplicaHealth("ready", ""),
        "1": ReplicaHealth("refused", "it serves another model"),
        "2": ReplicaHealth("ready", "", role="prefill"),
    }
    async with client_of(small_app(health_router(engine, lambda: None))) as http:
        answer = await http.get("/readyz")
    assert answer.status_code == 200
    assert answer.json() == {
        "status": "ready",
        "replicas": {
            "0": {"state": "ready"},
            "1": {"state": "refused", "reason": "it serves another model"},
            "2": {"state": "ready", "role": "prefill"},
        },
    }


async def test_a_router_process_is_there_where_there_is_one_and_its_silence_is_not_red() -> None:
    engine = OperatedEngine()
    async with client_of(small_app(health_router(engine, lambda: None))) as http:
        assert (await http.get("/readyz")).json() == {"status": "ready"}
        for answers, said in ((True, "answers"), (False, "no answer")):
            engine.router_answers = answers
            answer = await http.get("/readyz")
            assert (answer.status_code, answer.json()["router"]) == (200, said)


@pytest.mark.parametrize(
    "fault", [damaged("state", "s"), gone("limits", "l"), no_room("the disk"), None]
)
async def test_a_fault_of_what_is_kept_is_red_and_says_what_to_do(fault: Fault | None) -> None:
    async with client_of(small_app(health_router(OperatedEngine(), lambda: fault))) as http:
        assert (await http.get("/healthz")).status_code == 200
        answer = await http.get("/readyz")
        if fault is None:
            assert (answer.status_code, answer.json()) == (200, {"status": "ready"})
        else:
            assert answer.status_code == 503
            assert answer.json() == {"status": fault.status, "reason": fault.reason}


async def test_without_an_engine_that_is_said_first() -> None:
    engine = OperatedEngine()
    engine.connected = False
    fault = no_room("the disk")
    async with client_of(small_app(health_router(engine, lambda: fault))) as http:
        assert (await http.get("/readyz")).json()["status"] == "not_ready"
        engine.connected = True
        assert (await http.get("/readyz")).json()["status"] == "disk_full"
