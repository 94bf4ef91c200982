"""The heartbeat of an engine: is its process alive, and does its step loop go on?

A thread of the engine publishes how many turns its step loop has made, whatever a step takes:

    engine     41     42     42     42     42           (stopped)
    gateway    ok     ok     a long step ............   missed, missed, ...

Before there is a step loop, it says instead what the engine waits for, where that is another
machine (`told_meanwhile`).

No heartbeat: the process is stopped, swapped out or starved. Heartbeats with the same count: the
loop is in a long step, or hangs. The listener decides what follows (`connection`). A container's
health check listens too: `python -m engine.link.heartbeat ADDRESS [SECONDS [KEY_FILE]]`, with
the status 0 for one that is alive.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import zmq

from engine.link.address import address
from engine.link.binding import bind, make_way
from engine.link.tcp.curve import LinkKey, Socket, connect_with, only_holders, read_link_key
from engine.link.tcp.strangers import Strangers

HEARTBEAT_S = 0.5
PATIENCE_S = 5.0  # of a health check
MISSED = 4  # heartbeats in a row: then less than 3 s have passed
_COUNT_BYTES = 8  # a frame that is longer is a text


class Heartbeat:
    """The engine's end: a thread that publishes. Closed by who opened it."""

    def __init__(
        self, socket: Socket, turns: Callable[[], int | str], *, every_s: float = HEARTBEAT_S
    ) -> None:
        """`socket` is a bound PUB. `turns` says how many turns the step loop has made.

        Or, in a line, what the engine waits for before it has one.
        """
        self._socket = socket
        self._every_s = every_s
        self._turns = turns  # called on the thread
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine-heartbeat", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and close the socket."""
        self.stop()
        self._socket.close(linger=0)

    def stop(self) -> None:
        """End the thread: the socket is its caller's again. May be repeated."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(self._every_s):
            self._socket.send(_frame(self._turns()))  # never waits: PUB drops


def _frame(told: int | str) -> bytes:
    if isinstance(told, int):
        return told.to_bytes(_COUNT_BYTES, "little")
    return told.encode().ljust(_COUNT_BYTES + 1)


@contextmanager
def told_meanwhile(engine: str, key: LinkKey | None) -> Iterator[Callable[[str], None]]:
    """Tell those who listen to the heartbeat at this address what is called last.

    For an engine that is not there yet: its link is opened afterwards. Raises OSError where
    another engine is.
    """
    place, said = address(engine), ["the engine starts"]
    if place.path is not None:
        make_way(place.path)
    context: zmq.Context[Socket] = zmq.Context()
    with ExitStack() as opened:
        for path in place.files:
            opened.callback(path.unlink, missing_ok=True)
        opened.callback(context.destroy, linger=0)
        if key is not None:
            opened.enter_context(only_holders(context, key))
        publisher = context.socket(zmq.PUB)
        watch = None if key is None else Strangers(publisher, engine, names_key=False)
        with ExitStack() as bound:
            if watch is not None:
                bound.callback(watch.close)
            bind(publisher, place.heartbeat, key)
            heartbeat = opened.enter_context(closing(Heartbeat(publisher, lambda: said[-1])))
            bound.callback(heartbeat.stop)  # then the watch, and then the socket is closed
            yield said.append


class HeartbeatListener:
    """The other end. It counts looks, not seconds: a pause of this very process counts as one."""

    def __init__(
        self, context: zmq.Context[Socket], engine: str, key: LinkKey | None = None
    ) -> None:
        """`engine` is its address; `key` is needed over TCP."""
        self.missed = 0  # looks in a row without a heartbeat
        self.stuck = 0  # looks in a row that found the step loop where it was
        self.turns: int | None = None  # of the step loop, as far as is known
        self._waits_for: str | None = None
        self._socket = context.socket(zmq.SUB)
        self._socket.set(zmq.CONFLATE, 1)  # only the last one is kept
        self._socket.set(zmq.SUBSCRIBE, b"")
        if key is not None:
            connect_with(self._socket, key)
        self._socket.connect(address(engine).heartbeat)

    @property
    def waits_for(self) -> str | None:
        """What the engine waits for before it has a step loop, as it said last; None: nothing."""
        return None if self.missed >= MISSED else self._waits_for

    def look(self, timeout_s: float = 0.0) -> None:
        """Take the last heartbeat, if one has come since the look before or comes in time."""
        before = self.turns
        self.missed += 1
        self.stuck += 1
        if self._socket.poll(int(timeout_s * 1000)):
            self.missed = 0
            self._take(self._socket.recv())
            if self.turns != before:
                self.stuck = 0

    def begin(self) -> None:
        """Count from now on: what came before was not of a step loop."""
        self.missed = self.stuck = 0

    def _take(self, frame: bytes) -> None:
        is_count = len(frame) == _COUNT_BYTES
        self._waits_for = None if is_count else frame.decode(errors="replace").strip()
        if is_count:
            self.turns = int.from_bytes(frame, "little")

    def close(self) -> None:
        """Listen no more."""
        self._socket.close(linger=0)


def is_alive(engine: str, patience_s: float = PATIENCE_S, key: LinkKey | None = None) -> bool:
    """Whether the engine's step loop turns within `patience_s` seconds; not while a model loads."""
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
