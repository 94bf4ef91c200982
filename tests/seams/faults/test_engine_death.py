"""The engine is killed while it works: clients get errors at once, and it soon restarts."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.doubles.waiting import wait_for
from tests.seams.support.server import Server, running_server

PROMPT: dict[str, Any] = {"model": "handbook", "prompt": list(range(300, 340)), "temperature": 0}


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("mortal") / "data") as running:
        yield running


class Stream(threading.Thread):
    """A reader of one long stream, which keeps its lines."""

    def __init__(self, server: Server, key: str | None = None, max_tokens: int = 3000) -> None:
        super().__init__(daemon=True)
        self.body = PROMPT | {"max_tokens": max_tokens, "ignore_eos": True, "logprobs": 0}
        self.server = server
        self.key = key
        self.lines: list[str] = []
        self.broken: httpx.HTTPError | None = None

    def run(self) -> None:
        body = self.body | {"stream": True}
        with self.server.client(self.key) as client:
            try:
                with client.stream("POST", "/v1/completions", json=body) as answer:
                    self.lines.extend(line for line in answer.iter_lines() if line)
            except httpx.HTTPError as error:
                self.broken = error

    def num_tokens(self) -> int:
        """Count the tokens that the reader was sent."""
        told = [json.loads(line[6:]) for line in self.lines if '"choices"' in line]
        choices = [choice for chunk in told for choice in chunk["choices"]]
        return sum(len(choice["logprobs"]["tokens"]) for choice in choices if choice["logprobs"])


def test_killed_engine_ends_streams_with_an_error_and_comes_back(mortal: Server) -> None:
    with mortal.client() as client:
        before = client.post("/v1/completions", json=PROMPT | {"max_tokens": 20}).json()
    key = mortal.new_tenant()
    streams = [Stream(mortal, key) for _ in range(3)]
    for stream in streams:
        stream.start()
    wait_for(lambda: mortal.stats()["queue"]["running"] == 3, 30)
    killed = mortal.children()["engine"]
    os.kill(killed, signal.SIGKILL)
    for stream in streams:
        stream.join(10)
        assert not stream.is_alive()
        assert stream.broken is None
        assert '"error"' in stream.lines[-1]
        assert "engine_died" in stream.lines[-1]
        assert not any("[DONE]" in line for line in stream.lines)
    mortal.wait_until_ready(30)
    assert mortal.children()["engine"] != killed
    with mortal.client() as client:
        after = client.post("/v1/completions", json=PROMPT | {"max_tokens": 20}).json()
    assert after["choices"] == before["choices"]
    assert after["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    with mortal.client(key) as client:
        wait_for(
            lambda: sum(u["requests"] for u in client.get("/v1/usage").json()["usage"]) == 3, 20
        )
        [billed] = client.get("/v1/usage").json()["usage"]
    assert billed["generated_tokens"] == sum(stream.num_tokens() for stream in streams)
    # after its first token, a prompt is charged
    begun = sum(stream.num_tokens() > 0 for stream in streams)
    assert billed["computed_tokens"] + billed["cached_tokens"] == begun * len(PROMPT["prompt"])


def test_a_hung_engine_is_noticed_and_replaced_and_sigterm_leaves_no_process(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    data_dir = tmp_path_factory.mktemp("hanging") / "data"
    with running_server(data_dir, {"RATOON_ENGINE_SILENCE_S": "2"}) as server:
        hung = server.children()["engine"]
        stream = Stream(server)
        stream.start()
        wait_for(lambda: server.stats()["queue"]["running"] == 1, 30)
        os.kill(hung, signal.SIGSTOP)
        stream.join(30)
        assert not stream.is_alive()
        assert "engine_died" in stream.lines[-1]
        assert not server.is_ready()
        wait_for(lambda: server.children().get("engine", hung) != hung, 30)
        server.wait_until_ready(30)
        with server.client() as client:
            answer = client.post("/v1/completions", json=PROMPT | {"max_tokens": 1})
        assert answer.status_code == 200
        children = server.children()
        assert set(children) == {"engine", "gateway"}
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
        assert not any(os.path.exists(f"/proc/{pid}") for pid in (hung, *children.values()))


def test_a_stopped_engine_is_unhealthy_at_once_and_goes_on_where_it_was(mortal: Server) -> None:
    """A stopped engine is unhealthy long before it counts as hung, after two minutes on a CPU.

    Its running requests continue later.
    """
    stream = Stream(mortal, max_tokens=200)
    stream.start()
    wait_for(lambda: mortal.stats()["queue"]["running"] == 1, 30)
    stopped = mortal.children()["engine"]
    os.kill(stopped, signal.SIGSTOP)
    try:
        wait_for(lambda: not mortal.is_ready(), 30)
        with mortal.client() as client:
            assert "does not answer" in client.get("/readyz").json()["reason"]
            refused = client.post("/v1/completions", json=PROMPT | {"max_tokens": 1})
        assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
    finally:
        os.kill(stopped, signal.SIGCONT)
    mortal.wait_until_ready(30)
    stream.join(60)
    assert not stream.is_alive()
    assert "[DONE]" in stream.lines[-1]
    assert stream.num_tokens() == 200
    assert mortal.children()["engine"] == stopped


def test_while_no_engine_is_there_callers_are_told_to_retry(mortal: Server) -> None:
    os.kill(mortal.children()["engine"], signal.SIGKILL)
    wait_for(lambda: not mortal.is_ready(), 10)
    with mortal.client() as client:
        answer = client.post("/v1/completions", json=PROMPT | {"max_tokens": 1})
    assert answer.status_code == 503
    assert float(answer.headers["retry-after"]) > 0
    assert answer.json()["error"]["code"]
    mortal.wait_until_ready(30)
    with mortal.client() as client:
        assert client.post("/v1/completions", json=PROMPT | {"max_tokens": 1}).status_code == 200
