"""The ranks of a node end together, and who has started them is told why."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import zmq

from engine.config import EngineConfig
from engine.link.tcp.curve import Socket, read_link_key
from engine.process import EXIT_CANNOT_START
from engine.ranks.messages import REPORTS, NotStarted, Start
from engine.ranks.nodes.connection import NodeConnection
from engine.ranks.nodes.listener import NodeListener, open_listener
from engine.ranks.nodes.session import NodeSession
from engine.ranks.nodes.wire import (
    FromNode,
    Join,
    LinkBroken,
    RankCommand,
    RankEnded,
    RankReport,
    versions,
)
from engine.ranks.ring import PATIENCE_S, RING_BYTES, ReaderEnds
from tests.doubles.waiting import wait_for
from tests.engine.rigs.nodes import NodesAt, nodes_at

WAIT_S = 60.0
NO_MODEL = EngineConfig(model_dir="/no/model", socket="", device="cpu", pipeline_parallel=2)


@pytest.fixture
def at(tmp_path: Path) -> NodesAt:
    return nodes_at(tmp_path)


@pytest.fixture
def listener(at: NodesAt) -> Iterator[NodeListener]:
    key = read_link_key(at.key_file)
    with open_listener(at.place, key, 2, at.silence_s) as opened:
        yield opened


@pytest.fixture
def connection(at: NodesAt, listener: NodeListener) -> Iterator[NodeConnection]:
    """Of a node that was let in."""
    context: zmq.Context[Socket] = zmq.Context()
    made = NodeConnection(context, at.place, read_link_key(at.key_file), at.silence_s)
    made.send(Join(1, versions()))
    wait_for(lambda: not listener.receive() and not listener.missing, WAIT_S)
    yield made
    made.close()
    context.destroy(linger=0)


def starts(*ranks: int) -> list[Start]:
    ends = ReaderEnds(0, 0, 0, 0)
    return [Start(NO_MODEL, rank, ends, "tcp://127.0.0.1:9", "127.0.0.1") for rank in ranks]


def told_by(session: NodeSession, listener: NodeListener) -> list[FromNode]:
    """What it tells until it is over."""
    thread = threading.Thread(target=session.run, daemon=True)
    thread.start()
    told: list[FromNode] = []

    def look() -> bool:
        told.extend(message for _, message in listener.receive())
        return any(isinstance(message, RankEnded) for message in told)

    wait_for(look, WAIT_S)
    thread.join(WAIT_S)
    assert not thread.is_alive()
    return told


def test_when_one_is_killed_all_end(listener: NodeListener, connection: NodeConnection) -> None:
    with closing(NodeSession(connection, starts(2, 3))) as session:
        first, second = session._ranks
        os.kill(first._child.pid, signal.SIGSTOP)  # and cannot end by itself
        os.kill(second._child.pid, signal.SIGKILL)
        assert told_by(session, listener) == [RankEnded(3, -signal.SIGKILL)]
        assert first.status is None, "the control: it is there until then"
    assert first.status == -signal.SIGKILL


@pytest.fixture
def stuck(listener: NodeListener, connection: NodeConnection) -> Iterator[NodeSession]:
    """Two ranks of which neither takes anything, and more to tell them than the ring has room."""
    with closing(NodeSession(connection, starts(2, 3))) as session:
        for rank in session._ranks:
            os.kill(rank._child.pid, signal.SIGSTOP)
        listener.send(1, RankCommand(bytes(2 * RING_BYTES)))
        yield session


def is_writing(session: NodeSession) -> bool:
    return session._ring._end > 0


def test_one_that_is_killed_while_another_takes_nothing_ends_all(
    stuck: NodeSession, listener: NodeListener
) -> None:
    killer = threading.Thread(target=kill_once, args=(stuck, partial(is_writing, stuck)))
    killer.start()
    assert told_by(stuck, listener) == [RankEnded(3, -signal.SIGKILL)]
    killer.join()
    assert stuck._ranks[0].status is None, "the control: it has taken nothing, and is there"


def kill_once(session: NodeSession, is_so: Callable[[], bool]) -> None:
    wait_for(is_so, WAIT_S)
    os.kill(session._ranks[1]._child.pid, signal.SIGKILL)


def test_so_does_the_end_of_rank_0_s_machine(stuck: NodeSession, listener: NodeListener) -> None:
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(stuck.run)
        wait_for(partial(is_writing, stuck), WAIT_S)
        assert not running.done(), "the control"
        listener.socket.close(linger=0)
        with pytest.raises(LinkBroken, match="gone"):
            running.result(PATIENCE_S / 2)


def test_why_one_cannot_start_is_passed_on(
    listener: NodeListener, connection: NodeConnection
) -> None:
    with closing(NodeSession(connection, starts(1))) as session:
        report, ended = told_by(session, listener)
    assert isinstance(report, RankReport)
    assert report.rank == 1
    said = REPORTS.decode(report.content)
    assert isinstance(said, NotStarted)
    assert "/no/model" in said.text
    assert isinstance(ended, RankEnded)
    assert ended.rank == 1
    assert ended.status >= EXIT_CANNOT_START
