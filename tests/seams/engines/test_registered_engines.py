"""A gateway finds engines when they start, and continues without those that end."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.doubles.ports import two_free_ports
from tests.doubles.waiting import wait_for
from tests.seams.support.lone_gateway import Gateway, started
from tests.seams.support.ratoon import RATOON, Process, running

START_S = 60.0
PROMPT = {
    "model": "handbook",
    "prompt": "The support code for Berlin is",
    "max_tokens": 2,
    "temperature": 0,
}


@contextmanager
def registered(data_dir: Path, address: str) -> Iterator[Process]:
    """Run `ratoon engine --register`, with the state in the data directory."""
    flags = ["--data-dir", str(data_dir), "--socket", address, "--register"]
    sizes = ["--cache-tokens", "4096", "--disk-cache-gib", "0", "--num-threads", "1"]
    with running(["engine", *flags, *sizes], {}, data_dir.parent / "engine.log") as process:
        yield process


def ask(gateway: Gateway, max_tokens: int = 2) -> httpx.Response:
    key = {"authorization": "Bearer " + gateway.key("RATOON_DEMO_KEY")}
    body = PROMPT | {"max_tokens": max_tokens}
    return httpx.post(gateway.url + "/v1/completions", json=body, headers=key, timeout=60)


def states(gateway: Gateway) -> dict[str, str]:
    replicas = httpx.get(gateway.url + "/readyz", timeout=60).json().get("replicas", {})
    return {name: one["state"] for name, one in replicas.items() if name != "0"}


def engines(gateway: Gateway, *words: str) -> str:
    where = ["--url", gateway.url, "--data-dir", str(gateway.data_dir)]
    done = subprocess.run(
        [*RATOON, "engines", *words, *where], capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def test_a_gateway_finds_engines_and_goes_on_without_them(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    first, second = (f"127.0.0.1:{two_free_ports()}" for _ in range(2))
    with registered(data_dir, f"tcp://{first}") as one:
        wait_for((data_dir / "link.key").exists, START_S)
        with started(data_dir, "--find-engines") as gateway:
            wait_for(lambda: states(gateway) == {first: "ready"}, START_S)
            answer = ask(gateway)
            assert answer.status_code == 200, answer.text
            with registered(data_dir, f"tcp://{second}") as two:
                wait_for(lambda: states(gateway) == {first: "ready", second: "ready"}, START_S)
                assert "registers itself" in engines(gateway, "remove", f"tcp://{second}")
                assert engines(gateway, "list").count("\tready\t") == 2
                one.send_signal(signal.SIGTERM)
                assert one.wait(START_S) == 0
                wait_for(lambda: states(gateway) == {second: "ready"}, 15)
                assert ask(gateway).json()["choices"] == answer.json()["choices"]
                # the engine dies with its host, without deregistering
                two.send_signal(signal.SIGKILL)
                wait_for(lambda: states(gateway).get(second) in (None, "absent"), 15)
                assert ask(gateway).status_code == 503


def test_an_operator_adds_and_removes_an_engine_by_hand(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with started(data_dir, "--find-engines") as gateway:
        assert "Added" in engines(gateway, "add", f"{tmp_path}/e.sock")
        wait_for(lambda: states(gateway) == {f"{tmp_path}/e.sock": "absent"}, 15)
        assert "is registered at this address" in engines(gateway, "add", f"{tmp_path}/e.sock")
        assert "address: " in engines(gateway, "add", "tcp://nowhere")
        assert "Removed" in engines(gateway, "remove", f"{tmp_path}/e.sock")
        wait_for(lambda: states(gateway) == {}, 15)
        assert "no such engine" in engines(gateway, "remove", f"{tmp_path}/e.sock")
    shutil.rmtree(data_dir)
