"""Ray places engines on its nodes and replaces lost engines. A gateway finds them.

`make test-cluster` installs Ray for this. Without Ray the tests are skipped.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]

from cli.cluster.scaling import DOWN_AFTER_S
from cli.serving.link_key import link_key_file
from tests.doubles.engine.tiny_model import RUNNABLE, write_tiny_model
from tests.doubles.gateway.redis_server import RedisServer, redis_server
from tests.doubles.ports import free_port, two_free_ports
from tests.doubles.processes import children
from tests.doubles.waiting import until, wait_for
from tests.seams.support.lone_gateway import Gateway, answers, started

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed"),
    pytest.mark.timeout(600),
]

COMMAND = [sys.executable, "-c", "from cli.main import main; main()"]
# Ray gives a node's agents 15 s to start, which is too short on a busy machine, so starts are
# repeated.
ATTEMPTS = 4
RAY_VARIABLES = {
    "PYTHONDONTWRITEBYTECODE": "",  # the node's four processes then compile fewer files
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_raylet_start_wait_time_s": "40",
}
START_S = 180.0
LOSS_S = 120.0
TOKENS = 400  # number of tokens of an answer, so many that the node is lost before the answer ends
PROMPTS = 12


@dataclass
class Nodes:
    """A process that runs Ray's nodes on command."""

    process: subprocess.Popen[str]
    address: str = ""

    def tell(self, words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()
        assert self.hear() == "done"

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextmanager
def nodes(count: int, log: Path) -> Iterator[Nodes]:
    for _ in range(ATTEMPTS):
        process = start_nodes(count, log)
        try:
            made = Nodes(process)
            made.address = made.hear()
            if made.address:
                yield made
                return
        finally:
            process.communicate()  # the process ends when its standard input is closed
            process.wait(60)
    raise AssertionError(log.read_text())


def start_nodes(count: int, log: Path) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if "RATOON" not in name}
    with log.open("wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.nodes", str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**environment, **RAY_VARIABLES},
        )


def write_settings(file: Path, model: Path, ray: Nodes, **more: Any) -> None:
    """Write `cluster.yaml` for small engines, each of which fills one of Ray's nodes."""
    said = {
        "model": str(model), "load_format": "dummy", "max_model_len": 1024, "num_threads": 1,
        "ray_address": ray.address, "resources": {"room": 1}, "engine_port": two_free_ports(),
        "cache_tokens": 8192, "host_cache_tokens": 0, "disk_cache_gib": 0,
    }  # fmt: skip
    file.write_text(yaml.safe_dump(said | more))


def finding(data_dir: Path, model: Path, redis: RedisServer) -> AbstractContextManager[Gateway]:
    """Run a gateway that finds engines by their records in Redis."""
    flags = ("--model", str(model), "--find-engines", "--redis-url", redis.url)
    return started(data_dir, *flags)


@contextmanager
def cluster_up(settings: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*COMMAND, "cluster", "up", str(settings)], stdout=output, stderr=output
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def ratoon(*words: str) -> str:
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def placed(ray_address: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        ratoon("cluster", "status", "--ray-address", ray_address, "--json")
    )
    return found


def states(gateway: Gateway) -> list[str]:
    """Return the states of the engines that the gateway has found."""
    replicas = httpx.get(gateway.url + "/readyz", timeout=20).json().get("replicas", {})
    return sorted(one["state"] for name, one in replicas.items() if name != "0")


def moved(gateway: Gateway) -> float:
    """Return the number of requests that moved to another engine before they began."""
    lines = gateway.ask("/metrics", gateway.key("RATOON_ADMIN_KEY")).text.splitlines()
    named = [line for line in lines if line.startswith("ratoon_requests_moved_total{")]
    return sum(float(line.split()[-1]) for line in named)


def body(number: int) -> dict[str, Any]:
    prompt = [65 + number] * 20 + list(range(65, 113))
    return {
        "model": "tiny", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0,
        "ignore_eos": True, "logprobs": 0, "stream": True,
    }  # fmt: skip


@dataclass
class Stream:
    """A streamed answer, as far as it has arrived."""

    tokens: list[str] = field(default_factory=list)
    status: int = 0
    error: str | None = None

    async def run(self, client: httpx.AsyncClient, number: int) -> None:
        async with client.stream("POST", "/v1/completions", json=body(number)) as answer:
            self.status = answer.status_code
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    said = json.loads(line[6:])
                    self.error = said.get("error", {}).get("code")
                    for choice in said.get("choices", []):
                        self.tokens += (choice["logprobs"] or {}).get("tokens", [])


@dataclass
class Load:
    """Concurrent streams from one gateway."""

    gateway: Gateway
    streams: list[Stream] = field(default_factory=list)

    async def run(self, meanwhile: Any = None) -> list[Stream]:
        key = {"authorization": "Bearer " + self.gateway.key("RATOON_DEMO_KEY")}
        self.streams = [Stream() for _ in range(PROMPTS)]
        async with httpx.AsyncClient(
            base_url=self.gateway.url, headers=key, timeout=LOSS_S
        ) as client:
            running = [
                asyncio.create_task(one.run(client, number))
                for number, one in enumerate(self.streams)
            ]
            if meanwhile is not None:
                await until(lambda: any(one.tokens for one in self.streams), LOSS_S)
                await asyncio.to_thread(meanwhile)
            await asyncio.gather(*running)
        return self.streams


def test_engines_are_placed_lost_with_their_node_and_placed_elsewhere(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny", config=RUNNABLE)
    data_dir, settings = tmp_path / "data", tmp_path / "cluster.yaml"
    data_dir.mkdir(mode=0o700)
    key_file = link_key_file("tcp://any:1", None, data_dir, make=True)
    with redis_server(tmp_path) as redis, nodes(3, tmp_path / "nodes.log") as ray:
        shared = {"link_key_file": key_file, "redis_url": redis.url}
        write_settings(
            settings, model, ray, **shared, data_dir=str(tmp_path / "engines"), engines=2,
            max_running=2,
        )  # fmt: skip
        with finding(data_dir, model, redis) as gateway:
            with cluster_up(settings, tmp_path / "up.log"):
                wait_for(lambda: states(gateway) == ["ready", "ready"], START_S)
            # From here on only Ray's processes run, not the command.
            right = [one.tokens for one in asyncio.run(Load(gateway).run())]
            assert all(len(tokens) == TOKENS for tokens in right)
            before = {one["address"]: one["pid"] for one in placed(ray.address)}
            assert len(before) == 2
            lost = sorted(before)[0]

            load = asyncio.run(Load(gateway).run(lambda: ray.tell(f"lose {before[lost]}")))
            for number, one in enumerate(load):
                if one.error is None:
                    assert (one.status, one.tokens) == (200, right[number])
                else:  # the stream's answer had already begun
                    assert one.error == "engine_died"
                    assert 0 < len(one.tokens) < TOKENS
                    assert one.tokens == right[number][: len(one.tokens)]
            assert any(one.error is None for one in load)
            assert moved(gateway) > 0, "the control: the node had some that had not begun"

            wait_for(lambda: states(gateway) == ["ready", "ready"], LOSS_S)
            after = {one["address"]: one["pid"] for one in placed(ray.address)}
            # an engine keeps its port, whichever node it is placed on
            assert after.keys() == before.keys()
            assert after[lost] != before[lost]
            assert [one.tokens for one in asyncio.run(Load(gateway).run())] == right

            assert "Ended 2 engines" in ratoon("cluster", "down", "--ray-address", ray.address)
            wait_for(lambda: states(gateway) == [], 30)


def test_a_gateway_beside_the_command_serves_the_engines_that_ray_has_placed(
    tmp_path: Path,
) -> None:
    """Serve engines placed by Ray through a gateway that the command starts.

    The command writes the state and the key to files in `data_dir`, on one machine.
    """
    model = write_tiny_model(tmp_path / "tiny", config=RUNNABLE)
    data_dir, settings, port = tmp_path / "data", tmp_path / "cluster.yaml", free_port()
    with nodes(1, tmp_path / "nodes.log") as ray:
        beside = {"port": port, "page": False}
        write_settings(settings, model, ray, data_dir=str(data_dir), engines=1, gateway=beside)
        with cluster_up(settings, tmp_path / "up.log") as command:
            gateway = Gateway(command, port, data_dir)
            wait_for(lambda: answers(gateway.url) and states(gateway) == ["ready"], START_S)
            [right] = {tuple(one.tokens) for one in asyncio.run(Load(gateway).run())[:1]}
            assert len(right) == TOKENS

            [front] = [pid for pid in children(command.pid) if is_gateway(pid)]
            os.kill(front, signal.SIGKILL)
            wait_for(lambda: not answers(gateway.url), 30)
            wait_for(lambda: answers(gateway.url) and states(gateway) == ["ready"], START_S)
            assert tuple(asyncio.run(Load(gateway).run())[0].tokens) == right
        assert "gateway: ended with status -9, started again" in (tmp_path / "up.log").read_text()
        assert not answers(gateway.url), "it has ended with the command"
        assert len(placed(ray.address)) == 1, "the control: the engine is Ray's"
        assert "Ended 1 engines" in ratoon("cluster", "down", "--ray-address", ray.address)


def test_the_number_of_engines_follows_the_load_within_its_bounds(tmp_path: Path) -> None:
    """Let the number of engines follow the load, within its bounds.

    An engine runs one request at a time. Waiting requests start another engine, which stops later.
    """
    model = write_tiny_model(tmp_path / "tiny", config=RUNNABLE)
    settings, log, port = tmp_path / "cluster.yaml", tmp_path / "up.log", free_port()
    said = {
        "model": str(model), "load_format": "dummy", "max_model_len": 1024, "num_threads": 1,
        "data_dir": str(tmp_path / "data"), "engine_port": two_free_ports(), "num_cpus": 0.5,
        "cache_tokens": 8192, "host_cache_tokens": 0, "disk_cache_gib": 0, "max_running": 1,
        "max_engines": 2, "target_wait_s": 0.5, "gateway": {"port": port, "page": False},
    }  # fmt: skip
    settings.write_text(yaml.safe_dump(said))
    with cluster_up(settings, log) as command:
        gateway = Gateway(command, port, tmp_path / "data")
        wait_for(lambda: answers(gateway.url) and states(gateway) == ["ready"], START_S)

        def is_added() -> bool:
            streams = asyncio.run(Load(gateway).run())
            assert [(one.status, one.error) for one in streams] == [(200, None)] * PROMPTS
            return "engine 1: added" in log.read_text()

        wait_for(is_added, LOSS_S)
        wait_for(lambda: states(gateway) == ["ready", "ready"], START_S)
        for _ in range(2):
            assert is_added()
        wait_for(lambda: states(gateway) == ["ready"], DOWN_AFTER_S + 60)
    told = [line for line in log.read_text().splitlines() if "added" in line or "leaves" in line]
    assert [line.split(",")[0] for line in told] == ["engine 1: added", "engine 1: leaves"]


def test_a_signal_for_all_processes_ends_a_ray_that_was_started_here(tmp_path: Path) -> None:
    """End a Ray that the command started, when a signal reaches all processes.

    systemd signals all processes of a unit. Ray ends too, and no process waits for it.
    """
    model = write_tiny_model(tmp_path / "tiny", config=RUNNABLE)
    settings, log = tmp_path / "cluster.yaml", tmp_path / "up.log"
    said = {
        "model": str(model), "load_format": "dummy", "max_model_len": 1024, "num_threads": 1,
        "data_dir": str(tmp_path / "data"), "engine_port": two_free_ports(), "engines": 1,
        "cache_tokens": 8192, "host_cache_tokens": 0, "disk_cache_gib": 0,
    }  # fmt: skip
    settings.write_text(yaml.safe_dump(said))
    with log.open("ab") as output:
        command = subprocess.Popen(
            [*COMMAND, "cluster", "up", str(settings)],
            stdout=output,
            stderr=output,
            env={**os.environ, **RAY_VARIABLES},
            start_new_session=True,
        )
    try:
        wait_for(lambda: "engine 0: ready" in log.read_text(), START_S)
        os.killpg(command.pid, signal.SIGTERM)
        assert command.wait(40) == 0, "Ray gives up after 60 s, with an error"
        assert "Ray was asked to end as well" in log.read_text()
    finally:
        command.kill()


def is_gateway(pid: int) -> bool:
    """Return whether a process is `python -m gateway` that Ray did not start."""
    return b"\0-m\0gateway\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
