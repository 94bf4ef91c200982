"""A transport in memory that records what a protocol does with it."""

from __future__ import annotations

import asyncio


class Wire(asyncio.Transport):
    """A transport that stores the bytes to send, and records all other calls."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.sent: list[bytes] = []
        self.asked: list[str] = []
        self.is_reading_now = True
        # a field, because it is read too often to search the recorded calls each time
        self._is_closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(bytes(data))

    def write_eof(self) -> None:
        self.asked.append("eof")

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self._is_closing = True
        self.asked.append("close")

    def abort(self) -> None:
        self._is_closing = True
        self.asked.append("abort")

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self.is_reading_now = False
        self.asked.append("pause")

    def resume_reading(self) -> None:
        self.is_reading_now = True
        self.asked.append("resume")
