"""A rank dies, hangs, or loses its parent: clients get errors, and no process remains."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from engine.process import EXIT_BROKEN
from engine.ranks.process import RankProcess, RanksWatch
from tests.doubles.waiting import wait_for
from tests.seams.faults.test_engine_death import Stream
from tests.seams.support.server import Server, running_server

PROMPT: dict[str, Any] = {"model": "handbook", "prompt": list(range(300, 380)), "temperature": 0}
SETTINGS = {
    "RATOON_ENGINE_SILENCE_S": "4",
    "RATOON_NUM_THREADS": "1",
    "RATOON_CACHE_TOKENS": "1024",
    "RATOON_HOST_CACHE_TOKENS": "0",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run a server of two ranks that divide layers."""
    with filled_server(tmp_path_factory.mktemp("ranks"), "RATOON_TENSOR_PARALLEL") as running:
        yield running


@contextmanager
def filled_server(directory: Path, divides: str) -> Iterator[Server]:
    """Run a server that has PROMPT only on its ranks' disks: other blocks fill the upper tiers."""
    with running_server(directory / "data", {**SETTINGS, divides: "2"}) as running:
        fill(running)
        yield running


def fill(running: Server) -> None:
    """Send PROMPT twice, and then push it down to the disks with other prompts."""
    assert ask(running)[1] == 0
    assert ask(running)[1] >= 64, "the control: it is cached"
    for number in range(20):
        other = {"prompt": list(range(100 + number, 180 + number)), "max_tokens": 1}
        with running.client() as client:
            client.post("/v1/completions", json=PROMPT | other).raise_for_status()
    wait_for(lambda: running.stats()["tiers"]["disk"]["records"] >= 4, 30)


def rank_of(server: Server) -> int:
    """Return the process id of rank 1."""
    found = children_of(server.children()["engine"], "engine.follower")
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
    """Return the text that follows PROMPT, and the number of PROMPT's cached tokens."""
    with server.client() as client:
        answer = client.post("/v1/completions", json=PROMPT | {"max_tokens": 20})
        answer.raise_for_status()
    found = answer.json()
    return found["choices"][0]["text"], found["usage"]["prompt_tokens_details"]["cached_tokens"]


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def expect_an_end_and_a_successor(server: Server, stream: Stream, engine: int, rank: int) -> None:
    """Check that the stream ends with a typed error, and that all processes are replaced."""
    expect_an_end(stream)
    wait_for(lambda: is_gone(engine) and is_gone(rank), 30)
    wait_for(lambda: server.children().get("engine", engine) != engine, 30)
    server.wait_until_ready(60)
    assert rank_of(server) != rank


def expect_an_end(stream: Stream) -> None:
    """Check that the stream ends with a typed error."""
    stream.join(60)
    assert not stream.is_alive()
    assert stream.broken is None
    assert '"error"' in stream.lines[-1]
    assert '"code":"engine_' in stream.lines[-1].replace(" ", "")


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGSTOP], ids=["a rank is killed", "a rank hangs"]
)
def test_clients_are_told_and_the_engine_comes_back(server: Server, number: signal.Signals) -> None:
    """The rank is killed, or stopped so that it hangs. A hang ends with a kill of rank 0."""
    before, _ = ask(server)
    engine, rank = server.children()["engine"], rank_of(server)
    stream = Stream(server, max_tokens=800)
    stream.start()
    wait_for(lambda: server.stats()["queue"]["running"] == 1, 30)
    os.kill(rank, number)
    expect_an_end_and_a_successor(server, stream, engine, rank)
    after, cached = ask(server)
    assert after == before
    assert cached >= 64, "the successor is warm"


def test_the_death_of_the_first_stage_is_that_of_the_engine(tmp_path: Path) -> None:
    """Rank 0 notices the death while it waits for the first stage's output."""
    with filled_server(tmp_path, "RATOON_PIPELINE_PARALLEL") as server:
        test_clients_are_told_and_the_engine_comes_back(server, signal.SIGKILL)


def test_a_rank_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    """Even a stopped rank dies, although it cannot notice the end of its socket."""
    note = tmp_path / "pid"
    code = (
        "import sys, pathlib, time; from engine.ranks.process import RankProcess; "
        "rank = RankProcess(1, ()); "
        f"pathlib.Path({str(note)!r}).write_text(str(rank._child.pid)); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    try:
        wait_for(lambda: note.exists() and bool(note.read_text()), 30)
        rank = int(note.read_text())
        wait_for(lambda: is_tied(rank), 30)
        os.kill(rank, signal.SIGSTOP)
        assert not is_gone(rank), "the control: it lives"
    finally:
        parent.kill()
        parent.wait(30)
    wait_for(lambda: is_gone(rank), 30)


def is_tied(pid: int) -> bool:
    """Return whether a rank already ignores SIGTERM. If it does, it is tied to its parent's life.

    SIGINT is no sign of this, because a shell's background processes ignore SIGINT, too.
    """
    status = Path(f"/proc/{pid}/status").read_text()
    [ignored] = [line.split()[1] for line in status.splitlines() if line.startswith("SigIgn")]
    return bool(int(ignored, 16) & 1 << (signal.SIGTERM - 1))


class TestWatch:
    """Tests of the watch over ranks, with processes that only wait."""

    def test_the_death_of_one_ends_all_and_then_this_process(self) -> None:
        ended = SimpleQueue[int]()
        ranks = [waiting_rank(number) for number in (1, 2)]
        watch = RanksWatch(ranks, ended.put, grace_s=0.0)
        os.kill(ranks[0]._child.pid, signal.SIGSTOP)  # the watch can even kill a stopped rank
        ranks[1].kill()
        assert ended.get(timeout=30) == EXIT_BROKEN
        wait_for(lambda: ranks[0].status == -signal.SIGKILL, 30)
        watch.close()
        for rank in ranks:
            rank.finish(deadline=0.0)

    def test_who_ends_in_time_is_not_ended(self) -> None:
        ended = SimpleQueue[int]()
        ranks = [waiting_rank(1)]
        watch = RanksWatch(ranks, ended.put, grace_s=60.0)
        ranks[0].kill()
        watch.close()
        ranks[0].finish(deadline=0.0)
        assert ended.empty()


def waiting_rank(number: int) -> RankProcess:
    """Start a rank that waits for its first message."""
    return RankProcess(number, ())
