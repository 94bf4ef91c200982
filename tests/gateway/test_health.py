from __future__ import annotations

from gateway.health import health_router
from tests.gateway.operated_engine import OperatedEngine
from tests.gateway.small_app import client_of, small_app


async def test_alive_and_ready_with_an_engine() -> None:
    async with client_of(small_app(health_router(OperatedEngine()))) as http:
        for path in ("/healthz", "/readyz"):
            assert (await http.get(path)).status_code == 200


async def test_alive_but_not_ready_without_one_and_ready_again() -> None:
    engine = OperatedEngine()
    engine.connected = False
    async with client_of(small_app(health_router(engine))) as http:
        assert (await http.get("/healthz")).status_code == 200
        answer = await http.get("/readyz")
        assert answer.status_code == 503
        assert answer.json() == {"status": "not_ready", "reason": "no engine is connected"}
        engine.connected = True
        assert (await http.get("/readyz")).status_code == 200


async def test_a_hanging_engine_does_not_hang_the_checks() -> None:
    engine = OperatedEngine()
    engine.hangs = True
    async with client_of(small_app(health_router(engine))) as http:
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/readyz")).status_code == 200


async def test_not_ready_while_the_engine_s_process_stands_still() -> None:
    engine = OperatedEngine()
    engine.is_stalled = True
    async with client_of(small_app(health_router(engine))) as http:
        assert (await http.get("/healthz")).status_code == 200
        answer = await http.get("/readyz")
        assert answer.status_code == 503
        assert answer.json() == {"status": "stalled", "reason": "the engine does not answer"}
        engine.is_stalled = False
        assert (await http.get("/readyz")).status_code == 200
