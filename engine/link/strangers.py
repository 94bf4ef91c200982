"""Says in the engine's log that somebody connects who has not the key of the link.

Else a gateway with another key would be silent at both ends. It tries again for as long as it runs,
so only the first one is told, and after that one each time that a while has passed.

Knows: failed handshakes of a socket. Does not know: who it was, since ZMQ does not say.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import zmq
from zmq.utils.monitor import recv_monitor_message

from engine.link.curve import Socket

TOLD_EVERY_S = 600.0
_FAILED = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
_AT_ONCE = 64  # events of one turn of the step loop
_log = logging.getLogger(__name__)


class Strangers:
    """Those who fail at a socket that is not bound yet. For the socket's thread."""

    def __init__(
        self, socket: Socket, engine: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`engine` is its address, for the log; `clock`: seconds."""
        self._socket = socket
        self._monitor = socket.get_monitor_socket(_FAILED)
        self._engine = engine
        self._clock = clock
        self._told_at = float("-inf")

    def look(self) -> None:
        """Notice those that have come since; costs some microseconds where none has."""
        if not self._monitor.poll(0):
            return
        for _ in range(_AT_ONCE):
            try:
                recv_monitor_message(self._monitor, zmq.NOBLOCK)
            except zmq.Again:
                break
        if self._clock() - self._told_at >= TOLD_EVERY_S:
            self._told_at = self._clock()
            _log.error(
                "%s: somebody connects who has another link key, or none: it is not heard. "
                "Gateways need a copy of this engine's --link-key-file",
                self._engine,
            )

    def close(self) -> None:
        """Look no more; before the socket is closed."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
