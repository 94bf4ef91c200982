"""The heartbeat of an engine: it shows whether the process lives and its step loop makes progress.

A thread of the engine publishes the number of iterations of the step loop:

    engine     41     42     42     42     42           (stopped)
    gateway    ok     ok     a long step ............   missed, missed, ...

If no heartbeats arrive, the process is stopped, swapped out or starved. Heartbeats with the same
number mean that the loop is in a long step, or hangs. A container's health check also listens:
`python -m engine.link.heartbeat ADDRESS [SECONDS [KEY_FILE]]` exits with status 0 if the engine is
alive.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import zmq

from engine.link.address import address
from engine.link.tcp.curve import LinkKey, Socket, connect_with, read_link_key

HEARTBEAT_S = 0.5
PATIENCE_S = 5.0  # maximum seconds of a health check
MISSED = 4  # number of successive missed heartbeats (less than 3 s) that mean a stopped process
_COUNT_BYTES = 8


class Heartbeat:
    """The engine's end: a thread that publishes heartbeats. Whoever opens it must close it."""

    def __init__(
        self, socket: Socket, turns: Callable[[], int], *, every_s: float = HEARTBEAT_S
    ) -> None:
        """Publish the number of iterations, `turns()`, on `socket`, a bound PUB socket."""
        self._socket = socket
        self._every_s = every_s
        self._turns = turns
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine-heartbeat", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and close the socket."""
        self.stop()
        self._socket.close(linger=0)

    def stop(self) -> None:
        """End the thread. The caller may then use the socket. May be repeated."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(self._every_s):
            count = self._turns().to_bytes(_COUNT_BYTES, "little")
            self._socket.send(count)  # never blocks, because a PUB socket drops messages


class HeartbeatListener:
    """The gateway's end: it counts missed heartbeats.

    The listener counts calls of `look`, not seconds, so a pause of the gateway counts only once.
    """

    def __init__(
        self, context: zmq.Context[Socket], engine: str, key: LinkKey | None = None
    ) -> None:
        """Listen to the heartbeat of `engine`, an address. `key` is required over TCP."""
        self.missed = 0  # successive calls of `look` without a heartbeat
        self.stuck = 0  # successive calls of `look` without progress of the step loop
        self.turns: int | None = None
        self._socket = context.socket(zmq.SUB)
        self._socket.set(zmq.CONFLATE, 1)  # keeps only the last message
        self._socket.set(zmq.SUBSCRIBE, b"")
        if key is not None:
            connect_with(self._socket, key)
        self._socket.connect(address(engine).heartbeat)

    def look(self, timeout_s: float = 0.0) -> None:
        """Read the newest heartbeat since the previous look, or wait `timeout_s` for one."""
        before = self.turns
        self.missed += 1
        self.stuck += 1
        if self._socket.poll(int(timeout_s * 1000)):
            self.missed = 0
            self.turns = int.from_bytes(self._socket.recv(), "little")
            if self.turns != before:
                self.stuck = 0

    def begin(self) -> None:
        """Start counting. Earlier heartbeats are ignored, because the loop did not run yet."""
        self.missed = self.stuck = 0

    def close(self) -> None:
        """Stop listening."""
        self._socket.close(linger=0)


def is_alive(engine: str, patience_s: float = PATIENCE_S, key: LinkKey | None = None) -> bool:
    """Return whether the step loop makes progress within `patience_s` seconds.

    The loop makes no progress while the model is being loaded.
    """
    give_up = time.monotonic() + patience_s
    with (
        zmq.Context[Socket]() as context,
        closing(HeartbeatListener(context, engine, key)) as listener,
    ):
        listener.look(patience_s)
        first = listener.turns
        while listener.turns == first and (left := give_up - time.monotonic()) > 0:
            listener.look(left)
        return listener.turns != first


def _main(engine: str, patience_s: str = str(PATIENCE_S), key_file: str | None = None) -> int:
    key = None if key_file is None else read_link_key(Path(key_file))
    return 0 if is_alive(engine, float(patience_s), key) else 1


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
