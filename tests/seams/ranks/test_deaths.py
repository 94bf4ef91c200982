"""A rank dies, hangs, or is left alone: clients are told, and nothing stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from engine.process import EXIT_BROKEN
from engine.ranks.process import RankProcess, Watch
from tests.doubles.waiting import wait_for
from tests.seams.faults.test_engine_death import Stream
from tests.seams.support.server import Server, running_server

PROMPT: dict[str, Any] = {"model": "handbook", "prompt": list(range(300, 380)), "temperature": 0}
SETTINGS = {
    "RATOON_TENSOR_PARALLEL": "2",
    "RATOON_ENGINE_SILENCE_S": "4",
    "RATOON_NUM_THREADS": "1",
    "RATOON_CACHE_TOKENS": "4096",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One whose ranks' disks hold PROMPT since the server before was stopped."""
    data_dir = tmp_path_factory.mktemp("ranks") / "data"
    with running_server(data_dir, SETTINGS) as before:
        assert ask(before)[1] == 0
        ask(before)
        rank = rank_of(before)
    assert is_gone(rank)
    with running_server(data_dir, SETTINGS) as running:
        yield running


def rank_of(server: Server) -> int:
    """The process id of rank 1."""
    found = children_of(server.children()["engine"], "engine.ranks")
    assert len(found) == 1
    return found[0]


def children_of(parent: int, module: str) -> list[int]:
    listed = subprocess.run(
        ["ps", "-o", "pid=,args=", "--ppid", str(parent)],
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(line.split()[0]) for line in listed.stdout.splitlines() if module in line]


def ask(server: Server) -> tuple[str, int]:
    """What follows PROMPT, and how many of its tokens were cached."""
    with server.client() as client:
        answer = client.post("/v1/completions", json=PROMPT | {"max_tokens": 20})
        answer.raise_for_status()
    found = answer.json()
    return found["choices"][0]["text"], found["usage"]["prompt_tokens_details"]["cached_tokens"]


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def expect_an_end_and_a_successor(server: Server, stream: Stream, engine: int, rank: int) -> None:
    """The stream ends with a typed error, no process stays, and others take their places."""
    stream.join(60)
    assert not stream.is_alive()
    assert stream.broken is None
    assert '"error"' in stream.lines[-1]
    assert '"code":"engine_' in stream.lines[-1].replace(" ", "")
    wait_for(lambda: is_gone(engine) and is_gone(rank), 30)
    wait_for(lambda: server.children().get("engine", engine) != engine, 30)
    server.wait_until_ready(60)
    assert rank_of(server) != rank


@pytest.mark.parametrize(
    ("victim", "number"),
    [("rank", signal.SIGKILL), ("engine", signal.SIGKILL), ("rank", signal.SIGSTOP)],
    ids=["a rank is killed", "rank 0 is killed", "a rank hangs"],
)
def test_clients_are_told_and_the_engine_comes_back(
    server: Server, victim: str, number: signal.Signals
) -> None:
    before, cached = ask(server)
    assert cached >= 64, "what a stop has left on disk is found"
    engine, rank = server.children()["engine"], rank_of(server)
    stream = Stream(server)
    stream.start()
    wait_for(lambda: server.stats()["queue"]["running"] == 1, 30)
    os.kill(rank if victim == "rank" else engine, number)
    expect_an_end_and_a_successor(server, stream, engine, rank)
    after, cached = ask(server)
    assert after == before
    assert cached >= 64, "the successor is warm"


class TestWatch:
    """Of processes that do nothing but wait."""

    def test_the_death_of_one_ends_all_and_then_this_process(self) -> None:
        ended = SimpleQueue[int]()
        ranks = [waiting_rank(number) for number in (1, 2)]
        watch = Watch(ranks, ended.put, grace_s=0.0)
        os.kill(ranks[0]._child.pid, signal.SIGSTOP)  # a rank that is stopped can be killed
        ranks[1].kill()
        assert ended.get(timeout=30) == EXIT_BROKEN
        watch.close()
        for rank in ranks:
            rank.finish(deadline=0.0)

    def test_who_ends_in_time_is_not_ended(self) -> None:
        ended = SimpleQueue[int]()
        ranks = [waiting_rank(1)]
        watch = Watch(ranks, ended.put, grace_s=60.0)
        ranks[0].kill()
        ranks[0].finish(deadline=0.0)
        watch.close()
        assert ended.empty()


def waiting_rank(number: int) -> RankProcess:
    """It waits for its first message."""
    return RankProcess(number, ())
