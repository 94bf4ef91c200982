"""A connection of a gateway to an engine, from opening the socket to the end of the engine.

    CONNECTING -run-> AWAITING_WELCOME -Welcome-> OPEN <-heartbeats miss, come again-> SILENT
                              |                     |                                    |
                              |  peer is gone       |      the step loop does not go on  |
                              `-> DRAINING -all received-> CLOSED <----------------------'

Bytes that are not a valid message also close the connection. A failed handshake over TCP does so
too: the other end has another key, or is not an engine. Messages that arrive after the close are
dropped.

Elsewhere: the handling of an engine that is gone (`client`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum

import zmq
from zmq.utils.monitor import recv_monitor_message

from engine.link.address import address
from engine.link.codec import Codec, DecodeError
from engine.link.heartbeat import HEARTBEAT_S, MISSED, HeartbeatListener
from engine.link.messages import FromEngine, Hello, ToEngine, Welcome
from engine.link.pieces import in_pieces
from engine.link.tcp.curve import LinkKey, Socket, connect_with

RECONNECT_MS = 50
# The maximum seconds of a step, by device. The loop's count of iterations does not change during a
# step, so a longer step counts as a hang.
SILENCE_S = {"cpu": 120.0, "cuda": 10.0}
_WATCHED = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CONNECT_RETRIED  # nobody listens at the address
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL  # the peer closed the connection without giving a reason
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_FRAMES_AT_ONCE = 64  # maximum number of frames read before other tasks get a turn


class ConnectionState(Enum):
    """The states of a connection."""

    CONNECTING = "not yet run"
    AWAITING_WELCOME = "an engine may be absent, or load its model, for as long as it takes"
    OPEN = "the engine has welcomed us, and its process runs"
    SILENT = "likewise, but its heartbeat does not come: it may go on, or be given up"
    DRAINING = "the engine is gone, and what it sent last is received"
    CLOSED = "nothing is sent or received any more"


_IS_TAKING = {ConnectionState.AWAITING_WELCOME, ConnectionState.OPEN, ConnectionState.SILENT}


class Connection:
    """A socket to the engine at an address. `run` is called once. Used by one event loop only."""

    def __init__(
        self,
        context: zmq.Context[Socket],
        engine: str,
        *,
        codec: Codec,
        silence_s: float | None,
        receive: Callable[[FromEngine], None],
        heartbeat_s: float = HEARTBEAT_S,
        key: LinkKey | None = None,
    ) -> None:
        """Connect to an engine, whose step loop may stall for at most `silence_s` seconds.

        By default `silence_s` depends on the engine's device.
        """
        self.state = ConnectionState.CONNECTING
        self.why_closed = ""
        self.handshake_failed: bool | None = None
        self._engine = engine
        self._socket = _open(context, engine, codec.max_frame_bytes, key)
        self._monitor = self._socket.get_monitor_socket(
            zmq.EVENT_DISCONNECTED if key is None else _WATCHED
        )
        self._heartbeat = HeartbeatListener(context, engine, key)
        self._codec = codec
        self._silence_s = silence_s
        self._heartbeat_s = heartbeat_s
        self._receive = receive
        self._closed = asyncio.Event()

    def __repr__(self) -> str:
        heartbeat = self._heartbeat
        return (
            f"<Connection to {self._engine}: {self.state.name}, turn {heartbeat.turns} of the "
            f"engine, {heartbeat.missed} heartbeats missed>"
        )

    def send(self, message: ToEngine) -> bool:
        """Send a message to the socket now.

        Return False if no peer is connected. Raises EncodeError if the message is too large.
        """
        if self.state not in _IS_TAKING:
            return False
        frame = self._codec.encode(message)
        try:
            self._socket.send_multipart(in_pieces(frame), zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        self._receive_soon()
        return True

    async def run(self) -> None:
        """Greet the engine and receive until the connection closes.

        Afterwards `why_closed` has the reason.
        """
        loop = asyncio.get_running_loop()
        try:
            loop.add_reader(self._socket.FD, self._receive_waiting)
            loop.add_reader(self._monitor.FD, self._on_monitor)
            self.state = ConnectionState.AWAITING_WELCOME
            self.send(Hello())
            self._look_ahead()
            self._on_monitor()
            await self._closed.wait()
        finally:
            self._close("the engine died")
            loop.remove_reader(self._socket.FD)
            loop.remove_reader(self._monitor.FD)
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
            self._heartbeat.close()
            self._socket.close(linger=0)

    def _close(self, why: str) -> None:
        if self.state is not ConnectionState.CLOSED:
            self.state, self.why_closed = ConnectionState.CLOSED, why
            self._closed.set()

    def _receive_waiting(self) -> None:
        """Pass on received messages. Bytes that are not a valid message close the connection."""
        try:
            for _ in range(_FRAMES_AT_ONCE):
                if self.state is ConnectionState.CLOSED:
                    return
                self._take(self._codec.decode_from_engine(self._socket.recv(zmq.NOBLOCK)))
        except zmq.Again:
            if self.state is ConnectionState.DRAINING:
                self._close("the engine died")
        except DecodeError:
            self._close("the engine died")  # the engine is defective, or has another version
        else:
            self._receive_soon()

    def _receive_soon(self) -> None:
        """Schedule another receive, after any use of the socket.

        Any use of the socket resets ZMQ's edge-triggered descriptor. Messages may then wait without
        an event in the event loop.
        """
        asyncio.get_running_loop().call_soon(self._receive_waiting)

    def _take(self, message: FromEngine) -> None:
        if isinstance(message, Welcome) and self.state is ConnectionState.AWAITING_WELCOME:
            self._on_welcome(message)
        self._receive(message)

    def _on_welcome(self, welcome: Welcome) -> None:
        self.state = ConnectionState.OPEN
        self._heartbeat.begin()
        usual = SILENCE_S["cuda" if welcome.device.startswith("cuda") else "cpu"]
        self._look_later(usual if self._silence_s is None else self._silence_s)

    def _look_ahead(self) -> None:
        if self.state is ConnectionState.AWAITING_WELCOME:
            self._heartbeat.look()
            asyncio.get_running_loop().call_later(self._heartbeat_s, self._look_ahead)

    def _look_later(self, silence_s: float) -> None:
        asyncio.get_running_loop().call_later(self._heartbeat_s, self._look, silence_s)

    def _look(self, silence_s: float) -> None:
        if self.state not in (ConnectionState.OPEN, ConnectionState.SILENT):
            return
        self._heartbeat.look()
        is_missed = self._heartbeat.missed >= MISSED
        self.state = ConnectionState.SILENT if is_missed else ConnectionState.OPEN
        if self._heartbeat.stuck * self._heartbeat_s >= silence_s:
            self._close("the engine does not answer")
        else:
            self._look_later(silence_s)

    def _on_monitor(self) -> None:
        while (event := self._monitored()) is not None:
            if event == zmq.EVENT_CONNECT_RETRIED:
                self.handshake_failed = bool(self.handshake_failed)
            elif event != zmq.EVENT_DISCONNECTED:
                self.handshake_failed = event != zmq.EVENT_HANDSHAKE_SUCCEEDED
            elif self.state in _IS_TAKING:
                self.state = ConnectionState.DRAINING
                self._receive_soon()

    def _monitored(self) -> int | None:
        try:
            return recv_monitor_message(self._monitor, zmq.NOBLOCK)["event"]
        except zmq.Again:
            return None


def _open(
    context: zmq.Context[Socket], engine: str, max_frame_bytes: int, key: LinkKey | None
) -> Socket:
    socket = context.socket(zmq.DEALER)
    socket.set(zmq.LINGER, 0)
    # The option IMMEDIATE is not set, because it would drop the engine's last messages. Without it,
    # messages could be queued for an absent engine, but requests are sent only after its welcome.
    socket.set(zmq.SNDHWM, 0)
    socket.set(zmq.RCVHWM, 0)
    socket.set(zmq.MAXMSGSIZE, max_frame_bytes)
    socket.set(zmq.RECONNECT_IVL, RECONNECT_MS)
    if key is not None:
        connect_with(socket, key)
    socket.connect(address(engine).messages)
    return socket
