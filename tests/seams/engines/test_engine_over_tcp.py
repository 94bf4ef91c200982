"""A gateway is served by an engine over TCP, as on two machines, and only with the link's key."""

from __future__ import annotations

import resource
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import zmq

from tests.doubles.ports import two_free_ports
from tests.doubles.waiting import wait_for
from tests.seams.support.lone_gateway import Gateway, started
from tests.seams.support.ratoon import Process, executed, forked

START_S = 60.0
PROMPT = {
    "model": "handbook",
    "prompt": "The support code for Berlin is",
    "max_tokens": 2,
    "temperature": 0,
}


@contextmanager
def engine_at(address: str, data_dir: Path, within: Sequence[str] = ()) -> Iterator[Process]:
    """Run `ratoon engine` at a TCP address."""
    flags = ["--data-dir", str(data_dir), "--socket", address, "--cache-tokens", "4096"]
    words, log = ["engine", *flags], data_dir.parent / "engine.log"
    process = executed(words, {}, log, within) if within else forked(words, {}, log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def address() -> str:
    return f"tcp://127.0.0.1:{two_free_ports()}"


def ask(gateway: Gateway) -> httpx.Response:
    key = {"authorization": "Bearer " + gateway.key("RATOON_DEMO_KEY")}
    return httpx.post(gateway.url + "/v1/completions", json=PROMPT, headers=key, timeout=60)


def test_a_gateway_is_served_by_an_engine_on_another_machine(tmp_path: Path, address: str) -> None:
    engines, gateways = tmp_path / "engine", tmp_path / "gateway"
    place = ["--socket", address]
    with engine_at(address, engines) as engine:
        wait_for((engines / "link.key").exists, START_S)
        expect_a_stranger_to_be_told(tmp_path / "stranger", place, engines.parent / "engine.log")
        gateways.mkdir(mode=0o700)
        shutil.copy(engines / "link.key", gateways / "link.key")  # operators copy the key like this
        with started(gateways, *place) as gateway:
            wait_for(lambda: gateway.status() == "ready", START_S)
            first = ask(gateway)
            assert first.status_code == 200, first.text
            engine.send_signal(signal.SIGKILL)
            wait_for(lambda: gateway.status() == "not_ready", 15)
            assert ask(gateway).status_code == 503
            told = told_of_few(tmp_path)
            with engine_at(address, engines, ["prlimit", "--nofile=1024:1024"]):
                wait_for(lambda: gateway.status() == "ready", START_S)
                assert ask(gateway).json()["choices"] == first.json()["choices"]
            assert len(told_of_few(tmp_path)) == len(told) + 1
            assert told_of_few(tmp_path)[-1].endswith("hard limit of 1024 open files (ulimit -Hn)")
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            assert told == [] or 0 < hard < 4096, "the control: where there are enough"


def told_of_few(directory: Path) -> list[str]:
    lines = (directory / "engine.log").read_text().splitlines()
    return [line for line in lines if "has at most" in line]


def expect_a_stranger_to_be_told(data_dir: Path, place: list[str], engine_log: Path) -> None:
    """Check that both processes report the gateway's wrong key, and name the setting."""
    data_dir.mkdir(mode=0o700)
    other = data_dir / "link.key"
    other.write_bytes(zmq.curve_keypair()[1])
    other.chmod(0o600)
    with started(data_dir, *place) as stranger:

        def reason() -> str:
            said: str = httpx.get(stranger.url + "/readyz", timeout=60).json().get("reason", "")
            return said

        wait_for(lambda: "another one than that of --link-key-file" in reason(), START_S)
        assert ask(stranger).status_code == 503
    told = [line for line in engine_log.read_text().splitlines() if "another link key" in line]
    assert len(told) == 1
    assert "--link-key-file" in told[0]


def test_a_gateway_without_the_engines_key_does_not_start(tmp_path: Path, address: str) -> None:
    with started(tmp_path / "gateway", "--socket", address) as gateway:
        assert gateway.process.wait(30) == 2
    [line] = (tmp_path / "log").read_text().splitlines()
    assert "--link-key-file" in line
    assert "it is the engine's, to be copied from there" in line
