import socket
import sys

import msgspec
import pytest
from aiohttp import web

from cli.errors import BadSetting
from cli.gateway_options import GatewayFlags
from cli.serve import check_ports, commands, engine_is_ready, readiness_url
from engine.config import EngineConfig
from gateway.config import GatewayConfig
from tests.cli.http_double import served
from tests.doubles.fake_engine import FakeEngine
from tests.doubles.served import Served

ENGINE = EngineConfig(model_dir="/m", socket="/s", cache_tokens=64)
GATEWAY = GatewayConfig(model_dir="/m", model_name="m", data_dir="/d", engine_socket="/s")


def test_each_process_gets_its_config_whole() -> None:
    lines = commands(ENGINE, GATEWAY)
    assert set(lines) == {"engine", "gateway"}
    for name, line in lines.items():
        assert line[:-1] == [sys.executable, "-P", "-m", name]
    assert msgspec.json.decode(lines["engine"][-1], type=EngineConfig) == ENGINE
    assert msgspec.json.decode(lines["gateway"][-1], type=GatewayConfig) == GATEWAY


@pytest.mark.parametrize(
    ("flags", "url"),
    [
        (GatewayFlags(), "http://127.0.0.1:8000/readyz"),
        (GatewayFlags(host="0.0.0.0", port=81), "http://127.0.0.1:81/readyz"),
        (GatewayFlags(admin_port=82, host="10.1.1.1"), "http://127.0.0.1:82/readyz"),
    ],
)
def test_readiness_is_asked_where_the_admin_routes_are(flags: GatewayFlags, url: str) -> None:
    assert readiness_url(flags) == url


async def test_where_nobody_answers_as_a_gateway_would_it_is_not_known() -> None:
    async def words(_: web.Request) -> web.Response:
        return web.Response(text="all is well")

    def app() -> web.Application:
        application = web.Application()
        application.router.add_get("/readyz", words)
        return application

    with served(app) as url:
        assert await engine_is_ready(f"{url}/readyz") is None
        assert await engine_is_ready(f"{url}/elsewhere") is None
    assert await engine_is_ready(f"{url}/readyz") is None, "nobody is there any more"


async def test_ready_is_a_gateway_with_an_engine(
    gateway: Served, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await engine_is_ready(f"{gateway.url}/readyz") is True
    monkeypatch.setattr(engine, "welcome", None)
    assert await engine_is_ready(f"{gateway.url}/readyz") is False


async def test_an_engine_whose_process_stands_still_is_not_given_up_here(
    gateway: Served, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway does that, by `--engine-silence-s`; what runs goes on if the process does."""
    monkeypatch.setattr(engine, "is_stalled", True)
    assert await engine_is_ready(f"{gateway.url}/readyz") is None


@pytest.mark.parametrize("flag", ["--port", "--admin-port"])
def test_a_taken_port_is_named(flag: str) -> None:
    with socket.socket() as taken, socket.socket() as free:
        for listener in (taken, free):
            listener.bind(("127.0.0.1", 0))
        taken_port, free_port = taken.getsockname()[1], free.getsockname()[1]
        taken.listen()
        free.close()
        ports = (taken_port, free_port) if flag == "--port" else (free_port, taken_port)
        with pytest.raises(BadSetting, match=f"^{flag}: cannot listen on 127.0.0.1:{taken_port}"):
            check_ports(GatewayFlags(port=ports[0], admin_port=ports[1]))
        check_ports(GatewayFlags(port=free_port))
