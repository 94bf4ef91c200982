"""More connections than a gateway needs, and more than its process may open."""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, Popen

import httpx
import msgspec
import pytest

from gateway.config import GatewayConfig
from gateway.startup.max_connections import max_connections
from tests.doubles.engine.fake_engine import FakeEngine, saying
from tests.doubles.gateway.served import MODEL, Served, serving
from tests.doubles.ports import free_port
from tests.doubles.processes import descendants
from tests.doubles.waiting import wait_for
from tests.gateway.startup.test_main import first_start, get_when_up
from tests.gateway.support.raw_http import Answer, connected, post, read_answer

IDLE, ACTIVE = 300, 60
OPEN_FILES = 192  # open files allowed to a gateway, which leave room for few connections
BEYOND = 100  # number of connections beyond the limit
TENANTS = 5  # number of connections with an accepted key
CROWDS = 16
HANG_S = 30  # seconds; an answer that takes longer counts as a hang
GONE_S = 20  # seconds until a gateway must notice that a crowd is gone
HEALTH = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
REFUSED = 'ratoon_requests_refused_total{code="too_many_connections",route="unknown"} '
CHAT = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}).encode()


@pytest.fixture
def served(tiny_model: Path, tmp_path: Path, engine: FakeEngine) -> Iterator[Served]:
    config = GatewayConfig(
        model_dir=str(tiny_model),
        model_name=MODEL,
        data_dir=str(tmp_path),
        engines=(),
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
        for connection in idle:  # all idle connections are still open
            connection.sendall(HEALTH)
            assert read_answer(connection).status == 200
    assert served.wait_idle()


@dataclass(frozen=True)
class Small:
    """A gateway whose processes may open few files."""

    running: Popen[str]
    config: GatewayConfig
    admin_key: str
    key: str

    @property
    def room(self) -> int:
        """Return the number of tenants' connections that each process can hold."""
        return max_connections(self.config, OPEN_FILES)

    @property
    def serving(self) -> list[int]:
        """Return the ids of the serving processes."""
        workers = [pid for pid, command in descendants(self.running.pid) if "parent_" in command]
        return workers or [self.running.pid]

    def connect(self) -> socket.socket:
        """Connect to the tenants' port."""
        return socket.create_connection(("127.0.0.1", self.config.port), timeout=HANG_S)

    def is_free(self) -> bool:
        """Return whether a new connection is served."""
        with self.connect() as connection:
            return ask(connection).status == 200

    def asked_by_tenant(self, connection: socket.socket) -> int:
        """Return the status of a tenant's request on this connection."""
        connection.sendall(
            f"GET /v1/usage HTTP/1.1\r\nhost: x\r\nx-api-key: {self.key}\r\n\r\n".encode()
        )
        return read_answer(connection).status

    def operated(self, path: str) -> httpx.Response:
        """Return an answer of the operator's port."""
        headers = {"authorization": f"Bearer {self.admin_key}"}
        url = f"http://127.0.0.1:{self.config.admin_port}{path}"
        return httpx.get(url, headers=headers, timeout=HANG_S)

    def refused(self) -> float:
        """Return the number of refused connections that the gateway has counted."""
        lines = self.operated("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(REFUSED))


def ask(connection: socket.socket) -> Answer:
    """Send another request; return its answer, or the refusal that was sent before the request."""
    with suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(HEALTH)
    return read_answer(connection)


@contextmanager
def process(config: GatewayConfig) -> Iterator[Popen[str]]:
    """Run the gateway in an executed process: a forked one would have its fork server's limits.

    When the process ends, its workers end too.
    """
    command = [sys.executable, "-m", "gateway", msgspec.json.encode(config).decode()]
    running = Popen(command, stderr=PIPE, text=True)
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


@contextmanager
def small(model: Path, data: Path, workers: int) -> Iterator[Small]:
    """Run a gateway without an engine; each attempt to connect to the engine needs a new
    descriptor.
    """
    keys = first_start(data)
    config = GatewayConfig(
        model_dir=str(model),
        model_name=MODEL,
        data_dir=str(data),
        engines=(str(data / "engine.sock"),),
        port=free_port(),
        admin_port=free_port(),
        workers=workers,
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # the gateway inherits this limit
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, hard))
    with ExitStack() as stack:
        try:
            running = stack.enter_context(process(config))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert get_when_up(f"http://127.0.0.1:{config.port}/healthz").status_code == 200
        assert keys.demo_key is not None
        yield Small(running, config, keys.admin_key, keys.demo_key)


@pytest.mark.parametrize("workers", [1, 2])
def test_beyond_the_bound_strangers_make_room_and_who_has_a_key_stays(
    tiny_model: Path, tmp_path: Path, workers: int
) -> None:
    with small(tiny_model, tmp_path, workers) as gateway:
        assert gateway.refused() == 0
        with ExitStack() as crowd:
            tenants = [crowd.enter_context(gateway.connect()) for _ in range(TENANTS)]
            assert {gateway.asked_by_tenant(one) for one in tenants} == {200}
            many = workers * gateway.room + BEYOND
            strangers = [crowd.enter_context(gateway.connect()) for _ in range(many)]
            # an answer to a worker's last connection shows that the worker has accepted all
            strangers.reverse()
            answers = [ask(connection) for connection in strangers]
            inside = [one for one, was in zip(strangers, answers, strict=True) if was.status == 200]
            gone = [answer for answer in answers if answer.status != 200]
            # The kernel distributes connections among workers, so one worker may be full before
            # another.
            assert gateway.room - TENANTS <= len(inside) <= workers * gateway.room - TENANTS
            assert len(gone) >= BEYOND + TENANTS
            for answer in gone:
                assert (answer.status, answer.error["code"]) == (503, "too_many_connections")
                assert answer.headers["retry-after"] == "1"
                assert answer.headers["connection"] == "close"
            assert {ask(connection).status for connection in inside} == {200}
            assert {gateway.asked_by_tenant(one) for one in tenants} == {200}
            with gateway.connect() as another:
                assert gateway.asked_by_tenant(another) == 200, "one that comes now"
            assert gateway.operated("/admin/tenants").status_code == 200
            assert gateway.refused() == len(gone)
            for pid in gateway.serving:  # the process can still open files
                assert len(os.listdir(f"/proc/{pid}/fd")) < OPEN_FILES - 16
        wait_for(gateway.is_free, GONE_S)
        assert gateway.running.poll() is None


def test_a_storm_that_comes_and_goes_leaves_nobody_without_an_answer(
    tiny_model: Path, tmp_path: Path
) -> None:
    """Serve everybody after a storm of connections that come at once, and close as soon as they are
    answered.
    """
    with small(tiny_model, tmp_path, 1) as gateway, ThreadPoolExecutor(8) as threads:

        def come_and_go(_: int) -> set[int]:
            with ExitStack() as crowd:
                some = [crowd.enter_context(gateway.connect()) for _ in range(gateway.room)]
                return {ask(connection).status for connection in some}

        seen = set().union(*threads.map(come_and_go, range(CROWDS)))
        assert seen == {200, 503}
        wait_for(gateway.is_free, GONE_S)
