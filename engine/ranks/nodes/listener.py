"""The port of rank 0's machine at which others come, and who has come.

    Join --> here  | refused: another version, no such node, one that is here already
    later    each look sends a beat, which fails where a node is gone

Knows: ZMQ, and who is which node. Does not know: ranks, or what they are told (`relay`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import zmq

from engine.link.binding import bind
from engine.link.tcp.curve import LinkKey, Socket, only_holders, serve_with
from engine.link.tcp.strangers import Strangers
from engine.ranks.nodes.wire import (
    FROM_NODE,
    MAX_REPORT_BYTES,
    Beat,
    FromNode,
    Join,
    LinkBroken,
    NodeMessage,
    Numbered,
    Refused,
    versions,
)

LINGER_MS = 1000  # for what was sent last
BEATS = 5  # within the silence after which a machine counts as gone

_log = logging.getLogger(__name__)


class OtherVersion(Exception):
    """A node has come that runs another version."""


@dataclass(frozen=True, slots=True)
class _Node:
    identity: bytes  # of its connection
    numbered: Numbered = field(default_factory=Numbered)


class NodeListener:
    """The nodes from 1 on, as far as they have come. One owner thread."""

    def __init__(self, socket: Socket, num_nodes: int) -> None:
        """`num_nodes` includes rank 0's own."""
        self.socket = socket
        self._num_nodes = num_nodes
        self._nodes: dict[int, _Node] = {}
        self._is_open = True
        self._refused = ""  # why, the last time: a node asks again and again

    @property
    def missing(self) -> list[int]:
        """Nodes that have not come."""
        return [node for node in range(1, self._num_nodes) if node not in self._nodes]

    def shut(self) -> None:
        """Let nobody in any more."""
        self._is_open = False

    def send(self, node: int, message: NodeMessage) -> None:
        """Raises LinkBroken where the node is gone."""
        there = self._nodes[node]
        self._send(there, message, f"node {node} is gone")

    def look(self) -> list[int]:
        """The nodes that were there and are gone; they may come again."""
        gone = []
        for node in list(self._nodes):
            try:
                self.send(node, Beat())
            except LinkBroken:
                del self._nodes[node]
                gone.append(node)
        return gone

    def receive(self) -> list[tuple[int, FromNode]]:
        """What nodes have sent. Never waits. Raises LinkBroken, OtherVersion."""
        received: list[tuple[int, FromNode]] = []
        while True:
            try:
                identity, frame = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return received
            found = next((n for n, one in self._nodes.items() if one.identity == identity), None)
            if found is None:
                self._let_in(identity, frame)
            else:
                received.append((found, self._nodes[found].numbered.message(frame, FROM_NODE)))

    def _let_in(self, identity: bytes, frame: bytes) -> None:
        node = _Node(identity)
        try:
            message = node.numbered.message(frame, FROM_NODE)
        except LinkBroken:
            return  # what is left of a connection to the engine before
        if not isinstance(message, Join):
            return
        number = message.node
        if message.versions != versions():
            text = f"node {number} runs {message.versions}, and rank 0's machine {versions()}"
            self._refuse(node, Refused(text, is_final=True))
            if self._is_open:  # else all have come, whoever this is
                raise OtherVersion(text)
        elif not 0 < number < self._num_nodes:
            text = f"there are {self._num_nodes} nodes, and none is number {number}"
            self._refuse(node, Refused(text, is_final=True))
        elif not self._is_open or (number in self._nodes and number not in self.look()):
            self._refuse(node, Refused(f"node {number} is there already", is_final=False))
        else:
            self._nodes[number] = node
            _log.info("node %d has come", number)

    def _refuse(self, node: _Node, message: Refused) -> None:
        if message.text != self._refused:
            _log.warning("refused: %s", message.text)
            self._refused = message.text
        try:
            self._send(node, message, "")
        except LinkBroken:
            _log.debug("who was refused is gone")

    def _send(self, node: _Node, message: NodeMessage, gone: str) -> None:
        frame = node.numbered.frame(message)
        try:
            self.socket.send_multipart([node.identity, frame], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            raise LinkBroken(gone) from error


@contextmanager
def open_listener(
    endpoint: str, key: LinkKey, num_nodes: int, silence_s: float
) -> Iterator[NodeListener]:
    """Listen at `endpoint`. Raises OSError where that cannot be."""
    context: zmq.Context[Socket] = zmq.Context()
    with ExitStack() as opened:
        opened.callback(context.destroy, linger=LINGER_MS)
        opened.enter_context(only_holders(context, key))
        socket = context.socket(zmq.ROUTER)
        socket.set(zmq.ROUTER_MANDATORY, 1)
        socket.set(zmq.SNDHWM, 0)  # what ranks are told is bounded by what is under way
        socket.set(zmq.MAXMSGSIZE, MAX_REPORT_BYTES)
        serve_with(socket, key)
        notice_silence(socket, silence_s)
        opened.callback(Strangers(socket, endpoint).close)
        bind(socket, endpoint, None, "node_address")
        yield NodeListener(socket, num_nodes)


def notice_silence(socket: Socket, silence_s: float) -> None:
    """Before it is bound or connected: a machine that does not answer so long is gone."""
    socket.set(zmq.HEARTBEAT_IVL, int(silence_s * 1e3 / BEATS))
    socket.set(zmq.HEARTBEAT_TIMEOUT, int(silence_s * 1e3))
