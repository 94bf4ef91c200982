"""A server over two machines: one is killed or hangs, and both come back by themselves."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from tests.doubles.forks.process import ForkedProcess
from tests.doubles.processes import descendants
from tests.doubles.waiting import wait_for
from tests.engine.rigs.nodes import nodes_at, running_node
from tests.seams.faults.test_engine_death import Stream
from tests.seams.ranks.test_deaths import SETTINGS, ask, expect_an_end, fill, is_gone
from tests.seams.support.server import Server, running_server


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, ForkedProcess]]:
    """The first one's server, and the second one's process; both have PROMPT on their disks."""
    directory = tmp_path_factory.mktemp("machines")
    data_dir = directory / "data"
    data_dir.mkdir(mode=0o700)
    at = nodes_at(data_dir)
    settings = {
        **SETTINGS,
        "RATOON_PIPELINE_PARALLEL": "2",
        "RATOON_NNODES": "2",
        "RATOON_NODE_ADDRESS": at.place,
        "RATOON_NODE_SILENCE_S": "2",
        "RATOON_ENGINE_SILENCE_S": "30",  # more than what is found otherwise takes
    }
    model_dir = Path(str(files("handbook") / "model"))
    with (
        running_node(at, model_dir, directory / "there") as node,
        running_server(data_dir, settings) as server,
    ):
        fill(server)
        yield server, node


def rank_of(node: ForkedProcess) -> int:
    """The process id of its rank; 0 where there is none."""
    found = [pid for pid, line in descendants(node.pid) if "engine.ranks\0" in line]
    return found[0] if found else 0


@pytest.mark.parametrize("what", ["its rank is killed", "it hangs"])
def test_clients_are_told_and_both_machines_come_back(
    machines: tuple[Server, ForkedProcess], what: str
) -> None:
    """The node that hangs does not answer for longer than it may, with nobody closing anything."""
    server, node = machines
    before, _ = ask(server)
    engine, rank = server.children()["engine"], rank_of(node)
    stream = Stream(server, max_tokens=800)
    stream.start()
    wait_for(lambda: server.stats()["queue"]["running"] == 1, 30)
    if what == "it hangs":
        os.kill(node.pid, signal.SIGSTOP)
        os.kill(rank, signal.SIGSTOP)
    else:
        os.kill(rank, signal.SIGKILL)
    expect_an_end(stream)
    wait_for(lambda: is_gone(engine), 30)
    if what == "it hangs":
        wait_for(lambda: server.children().get("engine", engine) != engine, 30)
        assert not server.is_ready(), "the control: the successor waits for the node"
        os.kill(node.pid, signal.SIGCONT)  # and its rank is killed, stopped or not
    wait_for(lambda: rank_of(node) not in (0, rank), 30)
    server.wait_until_ready(60)
    after, cached = ask(server)
    assert after == before
    assert cached >= 64, "the successor is warm, on both machines"
    assert node.poll() is None
