"""The parts of the router process with real engines and sockets; only the model is a double."""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path

import msgspec
from msgspec.structs import replace

from cli.supervision.child import python_environment
from gateway.config import GatewayConfig
from gateway.processes.attached import WorkerConfig
from gateway.replicas.engine_set import EngineSet
from gateway.replicas.finding import replica_name
from gateway.router_process.main import listening, routed
from gateway.startup.engine_links import connected
from gateway.startup.main import router_command
from gateway.state.home import open_home
from gateway.state.records import RegisteredEngine
from tests.doubles.engine.engine_thread import EngineThread
from tests.engine.rigs.rig import generate
from tests.engine.rigs.streams import collect
from tests.gateway.replicas.rig import until
from tests.gateway.startup.test_engine_links import none_recorded

PROMPT = list(range(40))


def config_of(directory: Path, *engines: str, finds: bool = False) -> GatewayConfig:
    return GatewayConfig(
        model_dir="", model_name="", data_dir=str(directory), engines=engines, find_engines=finds
    )


def are_ready(*workers: object) -> bool:
    sets = [one for one in workers if isinstance(one, EngineSet)]
    return all(state.state == "ready" for one in sets for state in one.replicas.values())


async def test_what_one_worker_has_sent_another_one_finds_and_no_worker_subscribes(
    tmp_path: Path,
) -> None:
    paths = [str(tmp_path / f"{name}.sock") for name in "ab"]
    config, socket = config_of(tmp_path, *paths), tmp_path / "router.sock"
    with EngineThread(paths[0]), EngineThread(paths[1]):
        async with (
            routed(config) as service,
            listening(service, socket),
            connected(config, none_recorded(), socket) as one,
            connected(config, none_recorded(), socket) as other,
        ):
            await until(lambda: are_ready(one, other))
            await collect(one, generate("first", PROMPT))
            await until(lambda: sum(service._known().blocks.values()) > 0)
            ends = [
                (await collect(worker, generate(f"r{number}-{name}", PROMPT)))[1]
                for number in range(3)
                for name, worker in (("one", one), ("other", other))
            ]
            assert {end.reused.tokens for end in ends} == {39}, "always the one that has it"
            assert isinstance(other, EngineSet)
            assert other.listener("0") is None
            service.tell_known()
            await until(lambda: sum(r.known_blocks for r in other.replicas.values()) > 0)


async def test_engines_that_are_registered_are_listened_to(tmp_path: Path) -> None:
    path = str(tmp_path / "a.sock")
    config = config_of(tmp_path, finds=True)
    with EngineThread(path):
        async with open_home(tmp_path, config) as home, routed(config) as service:
            assert service._known().blocks == {}, "the control"
            await home.store.register_engine(RegisteredEngine(address=path, added_at=time.time()))
            async with asyncio.timeout(20):
                while replica_name(path) not in service._known().blocks:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)


def test_one_that_cannot_run_says_why_in_a_line(tmp_path: Path) -> None:
    """Report in one line why the process cannot run: one of its two engines uses TCP, but there is
    no key.

    The process runs its parent's code, whatever the parent's working directory contains.
    """
    (tmp_path / "gateway.py").write_text("raise SystemExit('not this one')")
    config = replace(
        config_of(tmp_path, str(tmp_path / "a.sock"), "tcp://127.0.0.1:1"),
        link_key_file=str(tmp_path / "link.key"),
    )
    given = WorkerConfig(parent_socket=0, metrics_dir="", router_socket=str(tmp_path / "r.sock"))
    done = subprocess.run(
        [*router_command(config), msgspec.json.encode(given).decode()],
        cwd=tmp_path,
        env=python_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "the router process cannot run: " in done.stderr
    assert "link.key" in done.stderr
    assert "Traceback" not in done.stderr
