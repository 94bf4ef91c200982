"""Who is let in at rank 0's machine, and how both ends see that the other one is gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
import zmq

from engine.link.tcp.curve import LinkKey, Socket, read_link_key
from engine.ranks.nodes.connection import NodeConnection
from engine.ranks.nodes.listener import NodeListener, OtherVersion, open_listener
from engine.ranks.nodes.wire import (
    Join,
    LinkBroken,
    RankCommand,
    RankEnded,
    RankReport,
    Refused,
    ToNode,
    versions,
)
from tests.doubles.cut_off import CutOff
from tests.doubles.ports import free_port
from tests.doubles.waiting import wait_for
from tests.engine.rigs.nodes import new_key_file

SILENCE_S = 2.0
WAIT_S = 20.0
NEVER_S = 1.0  # long enough for a handshake, as the controls show
T = TypeVar("T")
SAME = Join(1, versions())


@pytest.fixture
def key(tmp_path: Path) -> LinkKey:
    return read_link_key(new_key_file(tmp_path))


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def listener(key: LinkKey, port: int) -> Iterator[NodeListener]:
    with open_listener(f"tcp://127.0.0.1:{port}", key, 3, SILENCE_S) as opened:
        yield opened


@contextmanager
def coming(port: int, key: LinkKey, *joins: Join) -> Iterator[list[NodeConnection]]:
    """Nodes that come one after the other."""
    with ExitStack() as opened:
        context: zmq.Context[Socket] = zmq.Context()
        opened.callback(context.destroy, linger=0)
        connections = []
        for join in joins:
            at = f"tcp://127.0.0.1:{port}"
            connection = opened.enter_context(closing(NodeConnection(context, at, key, SILENCE_S)))
            connection.send(join)
            connections.append(connection)
        yield connections


def missing_after(
    listener: NodeListener, is_so: Callable[[], bool], within_s: float = WAIT_S
) -> list[int]:
    def look() -> bool:
        assert listener.receive() == []
        return is_so()

    wait_for(look, within_s)
    return listener.missing


def answered(listener: NodeListener, node: NodeConnection) -> ToNode:
    """The listener's first message to a node that is not let in."""
    got: list[ToNode] = []

    def look() -> bool:
        assert listener.receive() == []
        got.extend(node.receive())
        return bool(got)

    wait_for(look, WAIT_S)
    return got[0]


def arrived(receive: Callable[[], list[T]], count: int) -> list[T]:
    """So many messages, once they have come."""
    got: list[T] = []

    def look() -> bool:
        got.extend(receive())
        return len(got) >= count

    wait_for(look, WAIT_S)
    return got


def test_who_holds_the_key_is_let_in_and_nobody_else(
    listener: NodeListener, port: int, key: LinkKey, caplog: pytest.LogCaptureFixture
) -> None:
    other = LinkKey(zmq.curve_keypair()[1])
    with coming(port, other, SAME) as [stranger]:
        with pytest.raises(TimeoutError):
            missing_after(listener, lambda: listener.missing == [2], NEVER_S)
        with pytest.raises(LinkBroken, match="another key"):
            wait_for(lambda: bool(stranger.receive()), WAIT_S)
        assert "somebody connects who has another link key" in caplog.text
        with coming(port, key, SAME):
            assert missing_after(listener, lambda: listener.missing == [2]) == [2], "the control"


def test_messages_go_both_ways_in_their_order(
    listener: NodeListener, port: int, key: LinkKey
) -> None:
    with coming(port, key, SAME) as [node]:
        missing_after(listener, lambda: listener.missing == [2])
        for content in (b"a", b"", b"c" * 100_000):
            listener.send(1, RankCommand(content))
            node.send(RankReport(1, content))
        node.send(RankEnded(1, 7))
        assert arrived(node.receive, 3) == [
            RankCommand(b"a"),
            RankCommand(b""),
            RankCommand(b"c" * 100_000),
        ]
        reports = arrived(listener.receive, 4)
        assert [one for _, one in reports][-2:] == [RankReport(1, b"c" * 100_000), RankEnded(1, 7)]


@pytest.mark.parametrize("number", [0, 3])
def test_a_node_that_there_is_not_is_refused(
    listener: NodeListener, port: int, key: LinkKey, number: int
) -> None:
    text = f"there are 3 nodes, and none is number {number}"
    with coming(port, key, Join(number, versions())) as [node]:
        assert answered(listener, node) == Refused(text, is_final=True)
    assert listener.missing == [1, 2]


def test_another_version_is_refused_and_said(
    listener: NodeListener, port: int, key: LinkKey
) -> None:
    with coming(port, key, Join(1, "ratoon 0.0.0, torch 0")) as [node]:
        text = f"node 1 runs ratoon 0.0.0, torch 0, and rank 0's machine {versions()}"
        with pytest.raises(OtherVersion, match=f"^{text.replace('+', '.')}$"):
            missing_after(listener, lambda: False)
        assert arrived(node.receive, 1) == [Refused(text, is_final=True)]


@pytest.mark.parametrize(
    "told", ["ratoon 0\nERROR engine: all is lost", "ratoon 0\n", "x" * 100_000]
)
def test_versions_that_are_no_line_of_a_log_are_not_said(
    listener: NodeListener, port: int, key: LinkKey, caplog: pytest.LogCaptureFixture, told: str
) -> None:
    with coming(port, key, Join(1, told), SAME):
        assert missing_after(listener, lambda: listener.missing == [2]) == [2], "the control"
    assert told not in caplog.text


def test_a_second_one_of_a_number_waits_until_the_first_is_gone(
    listener: NodeListener, port: int, key: LinkKey, caplog: pytest.LogCaptureFixture
) -> None:
    with coming(port, key, SAME):
        missing_after(listener, lambda: listener.missing == [2])
        for _ in range(2):  # it asks again and again, and is told each time
            with coming(port, key, SAME) as [second]:
                refused = Refused("node 1 is there already", is_final=False)
                assert answered(listener, second) == refused
        assert caplog.text.count("node 1 is there already") == 1, "said once"
    wait_for(lambda: listener.look() == [1], WAIT_S)
    with coming(port, key, SAME):
        missing_after(listener, lambda: listener.missing == [2])
        listener.shut()
        for late in (Join(2, versions()), Join(2, "ratoon 0.0.0, torch 0")):
            with coming(port, key, late) as [node]:
                assert isinstance(answered(listener, node), Refused)
        assert listener.missing == [2]


def hears(node: NodeConnection) -> bool:
    """True, whatever has come: what was on its way is heard still."""
    node.receive()
    return True


def test_in_a_partition_each_end_sees_that_the_other_is_gone(
    listener: NodeListener, port: int, key: LinkKey
) -> None:
    """No connection is closed, so nothing but silence tells."""
    with closing(CutOff(port)) as way, coming(way.port, key, SAME) as [node]:
        missing_after(listener, lambda: listener.missing == [2])
        time.sleep(2 * SILENCE_S)
        assert listener.look() == [], "the control: it has been silent no longer than it may"
        node.receive()
        way.cut()
        wait_for(lambda: listener.look() == [1], WAIT_S)
        with pytest.raises(LinkBroken):
            wait_for(lambda: not hears(node), WAIT_S)
        way.mend()
        with coming(way.port, key, SAME):
            missing_after(listener, lambda: listener.missing == [2])
