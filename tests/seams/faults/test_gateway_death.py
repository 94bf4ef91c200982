"""The gateway ends or is killed while its engine lives on: the engine computes no orphans.

Gateway and engine are started separately, as by an operator's own supervisor. After a gateway's
end, the next gateway on the same socket shows which blocks the engine holds.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.doubles.ports import free_port
from tests.doubles.waiting import wait_for
from tests.seams.support.ratoon import Process, running
from tests.seams.support.server import START_S, Server, running_server

SOON_S = 10.0
LONG = {
    "model": "handbook",
    "prompt": "The harbour",
    "stream": True,
    "ignore_eos": True,
    "drafts": False,  # slow streams, with one token in each line
}


@contextmanager
def started(command: str, data_dir: Path, **settings: str) -> Iterator[Process]:
    """Run `ratoon gateway` or `ratoon engine` alone."""
    settings["RATOON_DATA_DIR"] = str(data_dir)
    with running([command], settings, data_dir.parent / f"{command}.log") as process:
        yield process


@contextmanager
def gateway(data_dir: Path) -> Iterator[Server]:
    port = str(free_port())
    with started("gateway", data_dir, RATOON_PORT=port) as process:
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: is_up(url) or process.poll() is not None, START_S)
        server = Server(process, url, data_dir)
        server.wait_until_ready()
        yield server


def is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    data_dir = tmp_path_factory.mktemp("apart") / "data"
    data_dir.mkdir(mode=0o700)
    with started("engine", data_dir, RATOON_CACHE_TOKENS="16384"):
        yield data_dir


class Reader(threading.Thread):
    """A reader of one stream, until the stream ends in any way."""

    def __init__(self, server: Server, max_tokens: int) -> None:
        super().__init__(daemon=True)
        self._client = server.client()
        self._body = LONG | {"max_tokens": max_tokens}
        self.lines: list[str] = []
        self.broke = False
        self.start()

    def run(self) -> None:
        with self._client as client:
            try:
                with client.stream("POST", "/v1/completions", json=self._body) as answer:
                    self.lines.extend(line for line in answer.iter_lines() if line)
            except httpx.HTTPError:
                self.broke = True


def reading(server: Server, count: int, max_tokens: int) -> list[Reader]:
    """Begin `count` streams, and wait until each has a chunk."""
    readers = [Reader(server, max_tokens) for _ in range(count)]
    wait_for(lambda: all(len(reader.lines) > 1 for reader in readers), START_S)
    return readers


def test_a_killed_gateway_s_requests_are_given_up_by_the_engine(data_dir: Path) -> None:
    with gateway(data_dir) as doomed:
        readers = reading(doomed, 4, 4000)
        assert doomed.stats()["queue"]["running"] == 4
        assert doomed.pool()["leased"] > 0
        os.kill(doomed.process.pid, signal.SIGKILL)
        for reader in readers:
            reader.join(SOON_S)
            assert reader.broke
    with gateway(data_dir) as successor:
        wait_for(lambda: successor.stats()["queue"] == {"running": 0, "waiting": 0}, SOON_S)
        with successor.client(successor.admin_key) as client:
            client.post("/admin/cache/flush", json={}).raise_for_status()
        wait_for(lambda: successor.pool()["free"] == successor.pool()["total"], SOON_S)
        with successor.client() as client:
            body = {"model": "handbook", "prompt": "The quay", "max_tokens": 2}
            assert client.post("/v1/completions", json=body).status_code == 200


def test_a_gateway_that_is_asked_to_end_truncates_nothing_and_takes_nothing_new(
    data_dir: Path,
) -> None:
    with gateway(data_dir) as ending:
        readers = reading(ending, 3, 150)
        waiting = socket.create_connection(("127.0.0.1", int(ending.url.rsplit(":", 1)[1])))
        ending.process.send_signal(signal.SIGTERM)
        wait_for(lambda: not accepts(ending), SOON_S)
        assert ending.process.poll() is None or all(not one.is_alive() for one in readers)
        for reader in readers:
            reader.join(60)
            assert not reader.broke
            assert reader.lines[-1] == "data: [DONE]"
            assert len(reader.lines) > 150 // 2
        assert ending.process.wait(30) == 0
        waiting.close()


def accepts(server: Server) -> bool:
    """Return whether a new request is accepted: it is connected, and not refused with 503."""
    try:
        with server.client() as client:
            body = {"model": "handbook", "prompt": "x", "max_tokens": 1}
            return client.post("/v1/completions", json=body).status_code != 503
    except httpx.HTTPError:
        return False


class Asker(threading.Thread):
    """A client that asks for short answers, one after the other, until it is stopped."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self._client = server.client()
        self._stop_asking = threading.Event()
        # a status for each request, or "away" if the connection failed
        self.outcomes: list[str] = []
        self.start()

    def run(self) -> None:
        body = {"model": "handbook", "prompt": "The quay", "max_tokens": 4}
        with self._client as client:
            while not self._stop_asking.wait(0.05):
                try:
                    answer = client.post("/v1/completions", json=body)
                    self.outcomes.append(str(answer.status_code))
                except httpx.TransportError:
                    self.outcomes.append("away")

    def stop(self) -> list[str]:
        self._stop_asking.set()
        self.join(60)
        return self.outcomes


def cached(server: Server, prompt: str) -> int:
    with server.client() as client:
        body = {"model": "handbook", "prompt": prompt, "max_tokens": 1}
        answer = client.post("/v1/completions", json=body)
        answer.raise_for_status()
        tokens: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        return tokens


def pins(server: Server) -> list[tuple[str, str]]:
    with server.client(server.admin_key) as client:
        answer = client.get("/admin/prefixes")
        answer.raise_for_status()
        return [(prefix["id"], prefix["state"]) for prefix in answer.json()["prefixes"]]


@pytest.fixture(scope="module", params=["1", "2"], ids=["1 worker", "2 workers"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Run a gateway and its engine; the last test ends both."""
    data_dir = tmp_path_factory.mktemp("together") / "data"
    with running_server(data_dir, {"RATOON_WORKERS": request.param}) as server:
        yield server


def test_a_killed_gateway_comes_back_beside_the_same_engine(served: Server) -> None:
    prompt = "Every crate that is to leave the harbour today has a number. " * 8
    assert cached(served, prompt) == 0
    warm = cached(served, prompt)
    assert warm >= 16
    with served.client(served.admin_key) as client:
        sent = {"name": "rules", "text": prompt}
        client.post("/admin/prefixes", json=sent).raise_for_status()
    wait_for(lambda: pins(served)[0][1] == "warm", SOON_S)
    pinned, leased = pins(served), served.pool()["leased"]  # pinned blocks are leased
    before = served.children()
    readers = reading(served, 2, 3000)
    assert served.pool()["leased"] > leased
    asker = Asker(served)
    wait_for(lambda: asker.outcomes.count("200") >= 3, START_S)
    assert set(asker.outcomes) == {"200"}, "the control: nobody is refused before"
    os.kill(before["gateway"], signal.SIGKILL)
    for reader in readers:
        reader.join(SOON_S)
        assert reader.broke
    wait_for(lambda: "away" in asker.outcomes and asker.outcomes[-3:] == ["200"] * 3, START_S)
    outcomes = asker.stop()
    back = len(outcomes) - outcomes[::-1].index("away")
    assert set(outcomes[back:]) <= {"200", "503"}, "503 until its link to the engine is there"
    assert set(outcomes[-3:]) == {"200"}
    after = served.children()
    assert after["engine"] == before["engine"]
    assert after["gateway"] != before["gateway"]
    wait_for(lambda: served.stats()["queue"] == {"running": 0, "waiting": 0}, SOON_S)
    wait_for(lambda: served.pool()["leased"] == leased, SOON_S)
    assert cached(served, prompt) >= warm, "the engine kept its cache"
    wait_for(lambda: pins(served) == pinned, SOON_S)


def test_asked_twice_to_end_serving_ends_at_once_and_streams_are_told(served: Server) -> None:
    readers, children = reading(served, 2, 4000), served.children()
    assert set(children) == {"engine", "gateway"}
    served.process.send_signal(signal.SIGTERM)
    wait_for(lambda: not accepts(served), SOON_S)
    assert all(reader.is_alive() for reader in readers), "they may finish"
    served.process.send_signal(signal.SIGTERM)
    for reader in readers:
        reader.join(SOON_S)
        assert not reader.broke
        error = json.loads(reader.lines[-1].removeprefix("data: "))["error"]
        assert error["code"] == "shutting_down"
    assert served.process.wait(30) == 0
    assert not any(os.path.exists(f"/proc/{pid}") for pid in children.values())
