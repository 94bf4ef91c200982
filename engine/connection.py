"""One connection of a gateway to an engine, from the socket's opening to the peer's end.

    open socket -> Hello -> messages ... -> the peer is gone, sends garbage, or is silent

An engine that hangs keeps its connections open. So while nothing comes, a `Hello` is sent once a
second as a heartbeat; an engine answers it between two steps. Whatever arrives on a connection
after it was given up is dropped.

Knows: the socket, its monitor, heartbeats, and when to give up. Does not know: what is asked of
an engine, who waits for the answers, or what follows when it is gone (`client`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from engine.codec import Codec, DecodeError
from engine.messages import FromEngine, Hello, ToEngine, Welcome

Socket: TypeAlias = "zmq.Socket[bytes]"

RECONNECT_MS = 50
BEAT_S = 1.0
# Between two steps an engine always answers, so these are bounds on what one step may take.
SILENCE_S = {"cpu": 120.0, "cuda": 10.0}
_FRAMES_AT_ONCE = 64  # then other tasks of the event loop get a turn


class Connection:
    """A socket to the engine at `path`, for one `run`. Belongs to one event loop."""

    def __init__(
        self,
        context: zmq.Context[Socket],
        path: str,
        *,
        codec: Codec,
        silence_s: float | None,
        hear: Callable[[FromEngine], None],
        lose: Callable[[str], None],
    ) -> None:
        """`hear` is given each message, `lose` once why there will be no more.

        `silence_s` is how long an engine may say nothing (None: by its device).
        """
        self._socket = _open(context, path, codec.max_frame_bytes)
        self._codec = codec
        self._silence_s = silence_s
        self._hear = hear
        self._lose = lose
        self._patience_s: float | None = None  # known once the engine has welcomed us
        self._has_spoken = False  # since the last beat
        self._nonsense = asyncio.Event()  # bytes came that are no message
        self._is_open = False

    def say(self, message: ToEngine) -> bool:
        """Hand a message to the socket now; False when there is no peer to take it.

        Raises EncodeError where the message is too large.
        """
        if not self._is_open:
            return False
        frame = self._codec.encode(message)
        try:
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        self._listen_again()
        return True

    async def run(self) -> None:
        """Greet, listen, and return once the peer is gone or useless."""
        monitor = zmq.asyncio.Socket.from_socket(
            self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        )
        loop = asyncio.get_running_loop()
        gone = asyncio.create_task(self._peer_gone(monitor), name="engine-connection-monitor")
        nonsense = asyncio.create_task(self._nonsense.wait(), name="engine-connection-nonsense")
        silent = asyncio.create_task(self._silent(), name="engine-connection-silence")
        ends: tuple[asyncio.Task[Any], ...] = (gone, nonsense, silent)
        try:
            loop.add_reader(self._socket.FD, self._listen)
            self._is_open = True
            self.say(Hello())
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._is_open = False
            loop.remove_reader(self._socket.FD)
            self._lose("the engine does not answer" if silent.done() else "the engine died")
            for end in ends:
                end.cancel()
            try:
                await asyncio.wait(ends)
            finally:
                self._socket.disable_monitor()
                monitor.close(linger=0)
                self._socket.close(linger=0)

    def _listen(self) -> None:
        """Hear what has come; on bytes that are no message, end this connection."""
        if not self._is_open:
            return  # it was closed meanwhile
        try:
            for _ in range(_FRAMES_AT_ONCE):
                self._take(self._codec.decode_from_engine(self._socket.recv(zmq.NOBLOCK)))
        except zmq.Again:
            return
        except DecodeError:
            self._nonsense.set()  # another version's engine, or a broken one
        else:
            self._listen_again()

    def _take(self, message: FromEngine) -> None:
        self._has_spoken = True
        if isinstance(message, Welcome):
            self._patience_s = self._patience_with(message.device)
        self._hear(message)

    def _listen_again(self) -> None:
        """Look again soon: ZMQ's descriptor is edge-triggered, and any use of the socket resets it.

        So after every use there may be messages that the event loop is not told of.
        """
        asyncio.get_running_loop().call_soon(self._listen)

    async def _peer_gone(self, monitor: zmq.asyncio.Socket) -> None:
        """Return once the peer is gone and what it said last has been heard."""
        while (await recv_monitor_message(monitor))["event"] != zmq.EVENT_DISCONNECTED:
            continue
        while self._socket.poll(0) and not self._nonsense.is_set():
            self._listen()
            await asyncio.sleep(0)

    async def _silent(self) -> None:
        """Return once an engine that has welcomed us has said nothing for too long.

        Missed beats are counted, not seconds: so a pause of this very process counts as one beat.
        """
        missed = 0
        while self._patience_s is None or missed * BEAT_S < self._patience_s:
            self._has_spoken = False
            if self._patience_s is not None:
                self.say(Hello())
            await asyncio.sleep(BEAT_S)
            missed = 0 if self._has_spoken else missed + 1

    def _patience_with(self, device: str) -> float:
        usual = SILENCE_S["cuda" if device.startswith("cuda") else "cpu"]
        return usual if self._silence_s is None else self._silence_s


def _open(context: zmq.Context[Socket], path: str, max_frame_bytes: int) -> Socket:
    socket = context.socket(zmq.DEALER)
    socket.set(zmq.LINGER, 0)
    # Not IMMEDIATE: that drops what the engine said last. Nothing is queued to an absent engine
    # all the same, since requests are taken only after its welcome.
    socket.set(zmq.SNDHWM, 0)
    socket.set(zmq.RCVHWM, 0)
    socket.set(zmq.MAXMSGSIZE, max_frame_bytes)
    socket.set(zmq.RECONNECT_IVL, RECONNECT_MS)
    socket.connect(f"ipc://{path}")
    return socket
