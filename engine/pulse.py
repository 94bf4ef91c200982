"""Does the engine's process still run? A thread of it that echoes, whatever a step takes.

    gateway    beat ->        beat ->        beat ->        beat ->
    engine          <- echo        <- echo   (stopped)
                                             missed         missed: the pulse is lost

A step may take a minute on a busy CPU, and meanwhile the engine's owner thread answers nothing.
This thread does: so a process that is stopped, swapped out or starved is noticed within seconds,
and a health check can say so. Nothing fails for it: when requests are given up is a matter of the
connection's own silence (`connection`).

An engine opens its echo before it welcomes anybody, so beats count from the welcome on, also for
one that stops before its first echo was felt.

Knows: one socket beside the engine's. Does not know: requests, steps, or what follows.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from pathlib import Path

import zmq

from engine.link import bind_private

BEAT_S = 0.8
MISSED = 2  # beats without an echo in a row: then less than 3 s have passed
_STOP_S = 0.2


def pulse_path(socket_path: str) -> str:
    """Where the engine at `socket_path` echoes."""
    return f"{socket_path}.p"


class Echo:
    """The engine's end: a thread with a socket of its own. Closed by who opened it."""

    def __init__(self, socket_path: str) -> None:
        self._path = pulse_path(socket_path)
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.set(zmq.LINGER, 0)
        Path(self._path).unlink(missing_ok=True)
        bind_private(self._socket, self._path)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine-echo", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and remove the socket's file."""
        self._is_over.set()
        self._thread.join()
        self._context.term()
        Path(self._path).unlink(missing_ok=True)

    def _run(self) -> None:
        while not self._is_over.is_set():
            if self._socket.poll(int(_STOP_S * 1000)):
                with suppress(zmq.ZMQError):  # who asked is gone
                    self._socket.send_multipart(self._socket.recv_multipart(), zmq.NOBLOCK)
        self._socket.close()


class Pulse:
    """The gateway's end. For one event loop."""

    def __init__(self, beat_s: float = BEAT_S) -> None:
        self._beat_s = beat_s
        self._missed = 0

    @property
    def is_lost(self) -> bool:
        """Whether the last beats had no echo; without an engine they have none either."""
        return self._missed >= MISSED

    def begin_anew(self) -> None:
        """Another engine has come: what the one before missed says nothing of it."""
        self._missed = 0

    async def watch(self, context: zmq.Context[zmq.Socket[bytes]], socket_path: str) -> None:
        """Beat until cancelled.

        Missed beats are counted, not seconds: so a pause of this very process counts as one beat.
        """
        socket = context.socket(zmq.DEALER)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.IMMEDIATE, 1)  # beats to nobody are not kept
        socket.connect(f"ipc://{pulse_path(socket_path)}")
        try:
            while True:
                with suppress(zmq.Again):
                    socket.send(b"", zmq.NOBLOCK)
                await asyncio.sleep(self._beat_s)
                self._missed = 0 if _has_echo(socket) else self._missed + 1
        finally:
            socket.close()


def _has_echo(socket: zmq.Socket[bytes]) -> bool:
    heard = False
    while socket.poll(0):
        socket.recv()
        heard = True
    return heard
