"""Says in the engine's log that somebody connects who has not the key of the link.

Else a gateway or node with another key would be silent at both ends. It tries again for as long as
it runs, so only the first one is told, and after that one each time that a while has passed.

A thread reads what the socket's monitor says, since ZMQ waits with everything else while nobody
does: whoever floods the port would hold up the heartbeat during a long step.

Knows: failed handshakes of a socket. Does not know: who it was, since ZMQ does not say.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import zmq
from zmq.utils.monitor import recv_monitor_message

from engine.link.curve import Socket

TOLD_EVERY_S = 600.0
_FAILED = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
_log = logging.getLogger(__name__)


class Strangers:
    """Those who fail at a socket that is not bound yet. Closed before the socket."""

    def __init__(
        self, socket: Socket, engine: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`engine` is its address, for the log; `clock`: seconds."""
        self._socket = socket
        self._engine = engine
        self._clock = clock
        monitor = socket.get_monitor_socket(_FAILED | zmq.EVENT_MONITOR_STOPPED)
        self._thread = threading.Thread(
            target=self._run, args=(monitor,), name="engine-strangers", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Look no more. May be repeated."""
        if self._thread.is_alive():
            self._socket.disable_monitor()
            self._thread.join()

    def _run(self, monitor: Socket) -> None:
        told_at = float("-inf")
        while recv_monitor_message(monitor)["event"] != zmq.EVENT_MONITOR_STOPPED:
            if self._clock() - told_at >= TOLD_EVERY_S:
                told_at = self._clock()
                _log.error(
                    "%s: somebody connects who has another link key, or none: it is not heard. "
                    "Gateways and nodes need a copy of this engine's --link-key-file",
                    self._engine,
                )
        monitor.close(linger=0)
