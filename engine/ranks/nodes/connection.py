"""A node's connection to rank 0's machine: one attempt, or one engine.

It ends with the first break: what is on the way then is lost, so a new one begins anew.

Knows: ZMQ. Does not know: what follows an end (`joining`).
"""

from __future__ import annotations

import zmq
from zmq.utils.monitor import recv_monitor_message

from engine.link.tcp.curve import LinkKey, Socket, connect_with
from engine.ranks.nodes.listener import LINGER_MS, notice_silence
from engine.ranks.nodes.wire import (
    MAX_FRAME_BYTES,
    TO_NODE,
    LinkBroken,
    NodeMessage,
    Numbered,
    Run,
    ToNode,
)

ENDS = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
GONE = "rank 0's machine is gone, does not answer, or has another key"


class NodeConnection:
    """One owner thread."""

    def __init__(
        self, context: zmq.Context[Socket], endpoint: str, key: LinkKey, silence_s: float
    ) -> None:
        """Connects as soon as somebody listens at `endpoint`."""
        self._numbered = Numbered()
        self._is_let_in = False
        self._socket = context.socket(zmq.DEALER)
        self._socket.set(zmq.SNDHWM, 0)
        self._socket.set(zmq.IPV6, 1)
        self._socket.set(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        connect_with(self._socket, key)
        notice_silence(self._socket, silence_s)
        for patience in (zmq.CONNECT_TIMEOUT, zmq.HANDSHAKE_IVL):  # else minutes, in a partition
            self._socket.set(patience, int(silence_s * 1e3))
        self._monitor = self._socket.get_monitor_socket(ENDS)
        self._socket.connect(endpoint)

    @property
    def readables(self) -> tuple[Socket, Socket]:
        """For a poller: readable when there may be something to receive, or an end."""
        return self._socket, self._monitor

    def send(self, message: NodeMessage) -> None:
        """Send it, or keep it until there is somebody."""
        self._socket.send(self._numbered.frame(message))

    def receive(self) -> list[ToNode]:
        """What has come. Never waits. Raises LinkBroken at the end, once there is no more."""
        received = []
        while True:
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            received.append(message := self._numbered.message(frame, TO_NODE))
            self._is_let_in = self._is_let_in or isinstance(message, Run)
        if not received and self._has_ended():
            raise LinkBroken(GONE)
        return received

    def close(self) -> None:
        """What ranks have reported may still leave; a wish to be let in is forgotten."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=LINGER_MS if self._is_let_in else 0)

    def _has_ended(self) -> bool:
        try:
            recv_monitor_message(self._monitor, zmq.NOBLOCK)  # it reports nothing else
        except zmq.Again:
            return False
        return True
