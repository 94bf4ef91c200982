"""One end of a connection between a worker and the router process: ordered messages with limits.

Bytes that are no message end the connection. A process that does not read ends it too, because the
bytes that wait to be sent must not grow without limit.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar, cast

import msgspec

# maximum bytes of a frame, as on the engine link, since both carry a prompt's block keys
MAX_FRAME_BYTES = 32 << 20
HEAD_BYTES = 4  # bytes of a frame's length, big endian
MOST_UNSENT_BYTES = 2 * MAX_FRAME_BYTES

M = TypeVar("M")


class RouterChannel(asyncio.Protocol, Generic[M]):
    """A channel on one connection and event loop. A closed channel drops messages."""

    def __init__(
        self,
        kind: Any,
        receive: Callable[[M], None],
        opened: Callable[[], None] = lambda: None,
        lost: Callable[[], None] = lambda: None,
        *,
        most_unsent_bytes: int = MOST_UNSENT_BYTES,
    ) -> None:
        """Decode the other end's messages as `kind`, a Struct or a union of Structs."""
        self.closed = asyncio.Event()
        self.broke = False  # whether the other end sent bytes that are no message
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._encoder = msgspec.msgpack.Encoder()
        self._receive = receive
        self._opened = opened
        self._lost = lost
        self._most_unsent_bytes = most_unsent_bytes
        self._come = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._opened()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        self.closed.set()
        self._lost()

    def data_received(self, data: bytes) -> None:
        """Pass on each message that has come whole."""
        self._come += data
        try:
            messages = [self._decoder.decode(frame) for frame in self._frames()]
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
            self.broke = True
            self.close()
            return
        for message in messages:
            self._receive(message)

    def send(self, message: msgspec.Struct) -> None:
        """Send a message after earlier messages."""
        if self._transport is None or self._transport.is_closing():
            return
        frame = self._encoder.encode(message)
        self._transport.writelines((len(frame).to_bytes(HEAD_BYTES, "big"), frame))
        if self._transport.get_write_buffer_size() > self._most_unsent_bytes:
            self.close()

    def close(self) -> None:
        """End the connection now. The event `closed` is set in a later turn of the event loop."""
        if self._transport is not None:
            self._transport.abort()

    def _frames(self) -> Iterator[bytearray]:
        start, come = 0, self._come
        while (begin := start + HEAD_BYTES) <= len(come):
            length = int.from_bytes(come[start:begin], "big")
            if length > MAX_FRAME_BYTES:
                raise ValueError("a frame is too large")
            if begin + length > len(come):
                break
            start = begin + length
            yield come[begin:start]
        del come[:start]
