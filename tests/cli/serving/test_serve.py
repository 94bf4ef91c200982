import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from msgspec.structs import replace

from cli.errors import BadSetting
from cli.models.machine import Machine
from cli.options.gateway_options import GATEWAY_DEFAULTS
from cli.options.options import ModelFlags, SocketFlags
from cli.serving.replicas import child_names
from cli.serving.serve import check_ports, commands, meeting_place, readiness_url
from cli.supervision.address import ServerAddress, found_by_commands, running_server
from cli.supervision.child import python_environment
from cli.supervision.readiness import probe
from engine.config import EngineConfig
from engine.link.interface import ReplicaHealth, ReplicaState
from gateway.config import GatewayConfig
from tests.cli.http_double import served
from tests.doubles.engine.fake_engine import FakeEngine
from tests.doubles.forks.process import forked_ratoon
from tests.doubles.gateway.served import Served
from tests.doubles.ports import free_port
from tests.doubles.waiting import wait_for

ENGINE = EngineConfig.of(model_dir="/m", socket="/s", cache_tokens=64)
MACHINE = Machine(num_cores=8, free_bytes=1 << 33, gpus=())
GATEWAY = GatewayConfig(model_dir="/m", model_name="m", data_dir="/d", engines=("/s",))


def test_each_process_gets_its_config_whole() -> None:
    lines = commands(ENGINE, GATEWAY, 1, MACHINE)
    assert set(lines) == {"engine", "gateway"}
    for name, line in lines.items():
        assert line[:-1] == [sys.executable, "-P", "-m", name]
    assert msgspec.json.decode(lines["engine"][-1], type=EngineConfig) == ENGINE
    assert msgspec.json.decode(lines["gateway"][-1], type=GatewayConfig) == GATEWAY


@pytest.mark.parametrize(
    ("flags", "url"),
    [
        (GATEWAY_DEFAULTS, "http://127.0.0.1:8000/readyz"),
        (replace(GATEWAY_DEFAULTS, host="0.0.0.0", port=81), "http://127.0.0.1:81/readyz"),
        (replace(GATEWAY_DEFAULTS, admin_port=82, host="10.1.1.1"), "http://127.0.0.1:82/readyz"),
    ],
)
def test_readiness_is_asked_where_the_admin_routes_are(flags: GatewayConfig, url: str) -> None:
    assert readiness_url(flags) == url


NOTHING = {"gateway": None, "engine": None}


@pytest.mark.parametrize("said", [b"all is well", b'{"status": "\xe9"}'])
async def test_where_nobody_answers_as_a_gateway_would_nothing_is_known(said: bytes) -> None:
    async def words(_: web.Request) -> web.Response:
        return web.Response(body=said)

    def app() -> web.Application:
        application = web.Application()
        application.router.add_get("/readyz", words)
        return application

    with served(app) as url:
        assert await probe(f"{url}/readyz", ["engine"]) == NOTHING
        assert await probe(f"{url}/elsewhere", ["engine"]) == NOTHING
    assert await probe(f"{url}/readyz", ["engine"]) == NOTHING, "nobody is there any more"


async def test_ready_is_a_gateway_with_an_engine(
    gateway: Served, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await probe(f"{gateway.url}/readyz", ["engine"]) == {"gateway": True, "engine": True}
    monkeypatch.setattr(engine, "welcome", None)
    assert await probe(f"{gateway.url}/readyz", ["engine"]) == {"gateway": True, "engine": False}


async def test_an_engine_whose_process_stands_still_is_not_given_up_here(
    gateway: Served, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Do not restart an engine whose process is stopped.

    The gateway gives up on it after `--engine-silence-s`. A resumed process continues its requests.
    """
    monkeypatch.setattr(engine, "is_stalled", True)
    assert await probe(f"{gateway.url}/readyz", ["engine"]) == {"gateway": True, "engine": None}


async def test_of_several_engines_each_answers_for_itself(
    gateway: Served, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: tuple[ReplicaState, ...] = ("ready", "absent", "stalled", "draining", "refused")
    replicas = {str(number): ReplicaHealth(state, "") for number, state in enumerate(states)}
    monkeypatch.setattr(engine, "replicas", replicas)
    replicas["0"] = ReplicaHealth("ready", "", "an id")
    names = child_names(5)
    assert await probe(f"{gateway.url}/readyz", names) == {
        "gateway": True,
        **dict(zip(names, ("an id", False, None, True, None), strict=True)),
    }


def test_each_of_several_engines_has_its_config_and_its_gpu() -> None:
    lines = commands(ENGINE, GATEWAY, 2, Machine(num_cores=8, free_bytes=1 << 33, gpus=("0", "1")))
    assert list(lines) == ["gateway", "engine-0", "engine-1"]
    for number, (name, place) in enumerate([("engine-0", "/s"), ("engine-1", "/s-1")]):
        assert lines[name][:2] == ["env", f"CUDA_VISIBLE_DEVICES={number}"]
        assert msgspec.json.decode(lines[name][-1], type=EngineConfig).process.socket == place


async def test_one_that_takes_connections_and_answers_nothing_hangs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/readyz"
        assert await probe(url, ["engine"]) == {"gateway": False, "engine": None}


async def test_one_that_closes_connections_at_once_has_no_room_but_does_not_hang() -> None:
    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(close, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/readyz"
        assert await probe(url, ["engine"]) == NOTHING


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
            check_ports(replace(GATEWAY_DEFAULTS, port=ports[0], admin_port=ports[1]))
        check_ports(replace(GATEWAY_DEFAULTS, port=free_port))


ECHO = "import os, sys; print(os.getpid(), sys.argv[1])"
BECOME = """
import os
from cli.models.machine import Machine
from cli.serving.serve import become
from engine.config import EngineConfig

print(os.getpid(), flush=True)
become("echo_config", EngineConfig.of(model_dir="m", socket="s"))
"""


def test_the_socket_lies_in_the_data_directory_by_default(tmp_path: Path) -> None:
    model = ModelFlags(data_dir=tmp_path)
    assert meeting_place(model, SocketFlags()) == str(tmp_path / "engine.sock")
    assert meeting_place(model, SocketFlags("/run/x.sock")) == "/run/x.sock"


def test_gateway_and_engine_agree_on_where_from_wherever_they_are_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = meeting_place(ModelFlags(data_dir=Path("data")), SocketFlags())
    assert place == str(tmp_path / "data" / "engine.sock")


def test_the_process_becomes_the_module_with_its_config(tmp_path: Path) -> None:
    (tmp_path / "echo_config.py").write_text(ECHO)
    env = python_environment()
    env["PYTHONPATH"] += f"{os.pathsep}{tmp_path}"
    printed = subprocess.run(
        [sys.executable, "-c", BECOME], env=env, capture_output=True, text=True, timeout=60
    ).stdout
    before, after = printed.splitlines()
    pid, config = after.split(" ", 1)
    assert pid == before, "it is the same process"
    assert EngineConfig.of(model_dir="m", socket="s").model.model_dir in config
    assert '"socket":"s"' in config


def test_a_second_server_of_a_directory_names_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (
        ServerAddress(url=url, admin_url=url, pid=1) for url in ("http://first", "http://second")
    )
    with found_by_commands(tmp_path, first):
        assert capsys.readouterr().err == "", "the control"
        with found_by_commands(tmp_path, second):
            assert running_server(tmp_path) == second
    assert capsys.readouterr().err.endswith("and that one with --url http://first\n")


def test_a_gateway_alone_tells_at_its_first_start_where_the_keys_are(tmp_path: Path) -> None:
    data = tmp_path / "data"
    words = ["gateway", f"--port={free_port()}", "--workers=1", f"--data-dir={data}"]
    environment = {name: os.environ[name] for name in os.environ if "RATOON" not in name}
    logs = [tmp_path / "first.log", tmp_path / "second.log"]
    for log in logs:
        log.touch()
        process = forked_ratoon(words, environment, log)
        wait_for(lambda log=log: "Uvicorn running" in log.read_text(), 60)  # type: ignore[misc]
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    first, second = (log.read_text() for log in logs)
    assert f"This first start made {data}" in first
    assert f"The keys are in {data / 'keys.env'}" in first
    assert "keys.env" not in second
