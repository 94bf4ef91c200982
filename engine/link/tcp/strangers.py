"""The logging of unauthenticated peers that connect to an engine's TCP socket.

Without this log, neither end would report that a gateway has a wrong key. At most one attempt every
TOLD_EVERY_S seconds is logged. A port with its maximum number of connections is logged too. A
thread reads the events of the socket's monitor, because ZMQ stops all other work until they are
read.
"""

from __future__ import annotations

import logging
import threading
import time

import zmq
from zmq.utils.monitor import recv_monitor_message

from engine.link.tcp.curve import Socket
from engine.link.tcp.open_connections import OpenConnections, most_open

TOLD_EVERY_S = 600.0
_FAILED = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
_CONNECTIONS = zmq.EVENT_LISTENING | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
_OTHER_KEY = (
    "%s: somebody connects who has another link key, or none: it is not heard. "
    "Gateways need a copy of this engine's --link-key-file"
)
_FULL = "%s: as many connections are open as may be at once: others wait until some have ended"
_NOT_BOUNDED = "%s: this system cannot bound how many connections are open, and there are many"
_log = logging.getLogger(__name__)


class Strangers:
    """A monitor of a socket's peers. Open it before binding. Close it before the socket."""

    def __init__(
        self,
        socket: Socket,
        engine: str,
        *,
        names_key: bool = True,
        most: int | None = None,
    ) -> None:
        """Watch `socket`.

        `engine` is the address to show in the log. If `names_key` is false, failed handshakes are
        not logged here. At most `most` connections are open at the same time, by default as many as
        the limit of open files allows.
        """
        self._socket = socket
        self._engine = engine
        self._names_key = names_key
        self._most = most_open() if most is None else most
        self._connections: OpenConnections | None = None
        self._told_at: dict[str, float] = {}
        monitor = socket.get_monitor_socket(_FAILED | _CONNECTIONS | zmq.EVENT_MONITOR_STOPPED)
        self._thread = threading.Thread(
            target=self._run, args=(monitor,), name="engine-strangers", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop watching. May be repeated."""
        if self._thread.is_alive():
            self._socket.disable_monitor()
            self._thread.join()

    def _run(self, monitor: Socket) -> None:
        while (told := recv_monitor_message(monitor))["event"] != zmq.EVENT_MONITOR_STOPPED:
            if told["event"] & _FAILED:
                if self._names_key:
                    self._tell(_OTHER_KEY)
            else:
                self._count(told["event"], told["value"])
        if self._connections is not None:
            self._connections.close()
        monitor.close(linger=0)

    def _count(self, event: int, descriptor: int) -> None:
        if event == zmq.EVENT_LISTENING:
            self._connections = OpenConnections(descriptor, self._most)
        elif self._connections is None:
            return
        elif event == zmq.EVENT_ACCEPTED:
            self._accepted(self._connections, descriptor)
        else:
            self._connections.ended(descriptor)

    def _accepted(self, connections: OpenConnections, descriptor: int) -> None:
        try:
            connections.accepted(descriptor)
        except OSError:  # a sandbox may forbid packet filters
            self._tell(_NOT_BOUNDED)
        if connections.is_full:
            self._tell(_FULL)

    def _tell(self, text: str) -> None:
        now = time.monotonic()
        if now - self._told_at.get(text, float("-inf")) >= TOLD_EVERY_S:
            self._told_at[text] = now
            _log.error(text, self._engine)
