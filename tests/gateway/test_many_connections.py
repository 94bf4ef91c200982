"""More connections than there is anything to do for, and more than the process may have."""

from __future__ import annotations

import json
import os
import resource
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen

import pytest
import zmq

from engine.pulse import pulse_path
from gateway.config import GatewayConfig
from tests.doubles.fake_engine import FakeEngine, saying
from tests.doubles.ports import free_port
from tests.doubles.served import MODEL, Served, serving
from tests.gateway.raw_http import connected, post, read_answer
from tests.gateway.test_main import first_start, get_when_up, process

IDLE, ACTIVE = 300, 60
SPARE = 20  # descriptors that the process has left when the crowd comes
HEALTH = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
CHAT = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}).encode()


@pytest.fixture
def served(tiny_model: Path, tmp_path: Path, engine: FakeEngine) -> Iterator[Served]:
    config = GatewayConfig(
        model_dir=str(tiny_model),
        model_name=MODEL,
        data_dir=str(tmp_path),
        engine_socket="",
        port=0,
        grace_s=1.0,
    )
    with serving(config, engine) as gateway:
        yield gateway


def test_idle_connections_keep_nobody_from_being_served(served: Served, engine: FakeEngine) -> None:
    engine.script = saying("good day")
    with ExitStack() as crowd, ThreadPoolExecutor(ACTIVE) as threads:
        idle = [crowd.enter_context(connected(served)) for _ in range(IDLE)]
        for connection in idle:
            connection.sendall(HEALTH)
            assert read_answer(connection).status == 200
        answers = list(
            threads.map(lambda _: post(served, "/v1/chat/completions", CHAT), range(ACTIVE))
        )
        assert {answer.status for answer in answers} == {200}
        for connection in idle:  # they are all still there
            connection.sendall(HEALTH)
            assert read_answer(connection).status == 200
    assert served.wait_idle()


@pytest.fixture
def mute_engine(tmp_path: Path) -> Iterator[Path]:
    """Somebody who listens where an engine would, and says nothing.

    Where nobody does, the gateway tries again every 50 ms, and each time takes a descriptor for a
    moment: it may be the one with which the event loop turns connections away.
    """
    path = tmp_path / "engine.sock"
    with zmq.Context() as context, ExitStack() as listening:
        for address in (str(path), pulse_path(str(path))):
            listening.enter_context(context.socket(zmq.ROUTER)).bind(f"ipc://{address}")
        yield path


@pytest.fixture
def alone(tiny_model: Path, tmp_path: Path, mute_engine: Path) -> Iterator[tuple[Popen[str], int]]:
    """A gateway in a process of its own, and its port."""
    first_start(tmp_path)
    config = GatewayConfig(
        model_dir=str(tiny_model),
        model_name=MODEL,
        data_dir=str(tmp_path),
        engine_socket=str(mute_engine),
        port=free_port(),
        admin_port=free_port(),
    )
    with process(config) as running:
        assert get_when_up(f"http://127.0.0.1:{config.port}/healthz").status_code == 200
        yield running, config.port


def health(connection: socket.socket) -> int | None:
    """The status of one more question; None where the connection was closed instead."""
    try:
        connection.sendall(HEALTH)
        return read_answer(connection).status
    except ConnectionError:
        return None


def test_without_descriptors_those_who_are_in_are_served_and_the_others_turned_away_at_once(
    alone: tuple[Popen[str], int],
) -> None:
    running, port = alone
    hard = resource.prlimit(running.pid, resource.RLIMIT_NOFILE)[1]
    with ExitStack() as crowd:
        early = [crowd.enter_context(_connect(port)) for _ in range(SPARE // 2)]
        assert {health(connection) for connection in early} == {200}
        # Only now: the connection that asked whether it is up has been seen to be gone.
        used = len(os.listdir(f"/proc/{running.pid}/fd"))
        most = used + SPARE - len(early)
        resource.prlimit(running.pid, resource.RLIMIT_NOFILE, (most, hard))
        late = [health(crowd.enter_context(_connect(port))) for _ in range(4 * SPARE)]
        assert set(late) == {200, None}
        # The connection that asked whether it is up may still have been among those in use.
        assert late.count(200) <= SPARE - len(early) + 1
        assert {health(connection) for connection in early} == {200}
    give_up = time.monotonic() + 10
    while _ask_anew(port) != 200:  # until it has seen that the crowd is gone
        assert time.monotonic() < give_up
    assert running.poll() is None


def _ask_anew(port: int) -> int | None:
    with _connect(port) as connection:
        return health(connection)


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)
