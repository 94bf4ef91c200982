"""The relay believes of each node what it says of its own ranks, and ends for anything else."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import zmq

from engine.config import EngineConfig
from engine.link.tcp.curve import Socket, read_link_key
from engine.process import EXIT_BROKEN
from engine.ranks.messages import ENCODER, REPORTS, LendingEnded
from engine.ranks.nodes.connection import NodeConnection
from engine.ranks.nodes.listener import open_listener
from engine.ranks.nodes.relay import Relay
from engine.ranks.nodes.wire import FromNode, Join, LinkBroken, RankEnded, RankReport, versions
from engine.ranks.ring import RingReader, RingWriter
from storage.disk.wire import Channel
from tests.doubles.ports import free_port
from tests.engine.rigs.nodes import new_key_file

SILENCE_S = 5.0
TICKET = LendingEnded(b"t" * 16)


class ThreeMachines:
    """A relay whose nodes 1 and 2 have a rank each, of the same number."""

    def __init__(self, directory: Path, opened: ExitStack) -> None:
        key, place = read_link_key(new_key_file(directory)), f"tcp://127.0.0.1:{free_port()}"
        config = EngineConfig(
            model_dir="", socket="", pipeline_parallel=3, nnodes=3, node_address=place
        )
        pairs = {rank: socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for rank in (1, 2)}
        for end in (one for pair in pairs.values() for one in pair):
            opened.enter_context(end)
        ring = opened.enter_context(closing(RingWriter(1)))
        reader = opened.enter_context(closing(RingReader(ring.ends[0])))
        listener = opened.enter_context(open_listener(place, key, 3, SILENCE_S))
        channels = {rank: Channel(theirs) for rank, (theirs, _) in pairs.items()}
        self.relay = Relay(config, listener, reader, channels)
        self._rank_0 = {rank: Channel(ours) for rank, (_, ours) in pairs.items()}
        context: zmq.Context[Socket] = zmq.Context()
        opened.callback(context.destroy, linger=0)
        self.nodes = {
            node: opened.enter_context(closing(NodeConnection(context, place, key, SILENCE_S)))
            for node in (1, 2)
        }
        for number, node in self.nodes.items():
            node.send(Join(number, versions()))
        self.relay.await_nodes()

    def reported(self, rank: int) -> LendingEnded | None:
        """What rank 0 hears of a rank."""
        content = self._rank_0[rank].receive(socket.MSG_DONTWAIT)
        if content is None:
            return None
        message = REPORTS.decode(content)
        assert isinstance(message, LendingEnded)
        return message


@pytest.fixture
def three(tmp_path: Path) -> Iterator[ThreeMachines]:
    with ExitStack() as opened:
        yield ThreeMachines(tmp_path, opened)


def test_what_a_node_says_of_its_own_rank_is_passed_on(three: ThreeMachines) -> None:
    for node in (1, 2):
        three.nodes[node].send(RankReport(node, ENCODER.encode(TICKET)))
    three.nodes[2].send(RankEnded(2, EXIT_BROKEN))
    assert three.relay.run() == EXIT_BROKEN
    assert three.reported(2) == TICKET


@pytest.mark.parametrize(
    "said",
    [
        RankReport(1, ENCODER.encode(TICKET)),
        RankEnded(1, 0),
        RankReport(7, b""),
        Join(2, versions()),
    ],
)
def test_what_it_says_of_another_ones_ends_the_engine(three: ThreeMachines, said: FromNode) -> None:
    """Else it could tell rank 0 that another machine's copies are done, or its rank over."""
    three.nodes[2].send(said)
    three.nodes[2].send(RankEnded(2, EXIT_BROKEN))
    with pytest.raises(LinkBroken, match=r"^node 2 says what it has no part in$"):
        three.relay.run()
    assert three.reported(1) is None
