"""Hostile clients. Each attacks once, and returns when the server cuts it off or it is done."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

CHAT = "/v1/chat/completions"
GIB = 1 << 30
BODY = 16 << 20
PIECE = b"a" * (64 << 10)
SLOWLY_S = 0.05  # seconds between two bytes
UNREAD_S = 5.0
LISTS = (900_000, 15_000_000)  # sizes of the bodies, in bytes

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class Target:
    """A server, and a key that it accepts."""

    port: int
    key: str
    model: str

    async def connect(self, receive_bytes: int | None = None) -> Connection:
        """Open a connection; `receive_bytes` bounds the kernel's receive buffer."""
        plain = socket.socket()
        if receive_bytes is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        plain.setblocking(False)
        await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", self.port))
        return await asyncio.open_connection(sock=plain, limit=1 << 12)

    def head(self, *extra: str) -> bytes:
        """Return the head of a chat request."""
        lines = [f"POST {CHAT} HTTP/1.1", "host: x", f"authorization: Bearer {self.key}", *extra]
        return "\r\n".join([*lines, "", ""]).encode()

    def chat(self, text: str, **more: Any) -> bytes:
        """Return a whole chat request."""
        messages = [{"role": "user", "content": text}]
        body = json.dumps({"model": self.model, "messages": messages, **more}).encode()
        return self.head(f"content-length: {len(body)}") + body


Attack = Callable[[Target], Coroutine[Any, Any, object]]


async def slow_head(target: Target) -> None:
    """Send a header slowly, byte by byte, without end."""
    await _drip(target, target.head()[:-4] + b"\r\nx-slow: ")


async def slow_body(target: Target) -> None:
    """Send a body slowly, byte by byte."""
    await _drip(target, target.head("content-length: 100000") + b'{"model": "')


async def slow_reader(target: Target) -> None:
    """Ask for a long answer of many choices, and do not read it."""
    reader, writer = await target.connect(receive_bytes=4096)
    many = {"stream": True, "n": 16, "logprobs": True, "top_logprobs": 20, "max_tokens": 400}
    writer.write(target.chat("long " * 100, **many))
    try:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        # This client reads nothing, so it cannot notice that the server ends the connection. It
        # waits instead.
        await asyncio.sleep(UNREAD_S)
    finally:
        writer.transport.abort()


async def reset_in_mid_stream(target: Target) -> None:
    """Ask for a stream, and reset the connection as soon as it has begun."""
    reader, writer = await target.connect()
    writer.write(target.chat("long " * 100, stream=True, max_tokens=400))
    await reader.readuntil(b"data: ")
    plain = writer.get_extra_info("socket")
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def huge_body(target: Target) -> None:
    """Send a body of 1 GiB with its length declared, for as long as the server reads."""
    await _pour(target, target.head(f"content-length: {GIB}"), b"", b"")


async def huge_chunks(target: Target) -> None:
    """Send a body of 1 GiB in chunks, for as long as the server reads."""
    frame = f"{len(PIECE):x}\r\n".encode()
    await _pour(target, target.head("transfer-encoding: chunked"), frame, b"\r\n")


async def bombs(target: Target) -> None:
    """Send numbers, such as lengths, that would make a trusting server allocate much memory."""
    for more in (
        {"n": 10**9},
        {"n": -1},
        {"logprobs": True, "top_logprobs": 10**9},
        {"max_tokens": 10**18, "n": 16},
        {"stop": ["x" * 10_000] * 16},
        {"logit_bias": {str(number): 1 for number in range(20_000)}},
    ):
        reader, writer = await target.connect()
        writer.write(target.chat("hi", **more))
        # the server may end the connection before an answer
        with suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
        writer.close()


async def long_lists(target: Target) -> None:
    """Send lists of very many values, in bodies within the limit."""
    for size in LISTS:
        reader, writer = await target.connect()
        chat = f'{{"model": "{target.model}", "messages": [{{"role": "user", "content": "hi"}}]'
        body = chat.encode() + b', "stop": [' + b'"a",' * (size // 4) + b'"a"]}'
        writer.write(target.head(f"content-length: {len(body)}") + body)
        try:
            await reader.readuntil(b"\r\n\r\n")
        except (ConnectionError, asyncio.IncompleteReadError):
            continue  # the server ended the connection before it read all
        finally:
            writer.transport.abort()


async def unfinished_body(target: Target, size: int = BODY, hold_s: float = UNREAD_S) -> bytes:
    """Send a declared body but its last byte. Return the status line, or b"" after `hold_s`.

    The body is sent for as long as the server reads.
    """
    reader, writer = await target.connect()
    writer.write(target.head(f"content-length: {size}"))
    pouring = asyncio.create_task(_pour_in(writer, (size - 1) // len(PIECE)))
    try:
        async with asyncio.timeout(hold_s):
            return await reader.readline()
    except (ConnectionError, TimeoutError):
        return b""
    finally:
        pouring.cancel()
        await asyncio.gather(pouring, return_exceptions=True)
        writer.transport.abort()


async def _pour_in(writer: asyncio.StreamWriter, pieces: int) -> None:
    for _ in range(pieces):
        writer.write(PIECE)
        await writer.drain()


async def unfinished_bodies(
    target: Target, many: int = 100, hold_s: float = UNREAD_S
) -> list[bytes]:
    """Send `many` unfinished bodies at once, and return the status lines of the answers."""
    return await asyncio.gather(*(unfinished_body(target, hold_s=hold_s) for _ in range(many)))


async def long_text(target: Target, path: str, text: str, **more: Any) -> bytes:
    """Send the prompt `text` to `path`, where it is tokenised, and return the status line."""
    body = json.dumps({"model": target.model, "prompt": text, **more}, ensure_ascii=False).encode()
    reader, writer = await target.connect()
    try:
        head = target.head(f"content-length: {len(body)}").replace(CHAT.encode(), path.encode(), 1)
        writer.write(head + body)
        return await reader.readline()
    finally:
        writer.transport.abort()


ATTACKS: dict[str, Attack] = {
    "slow heads": slow_head,
    "slow bodies": slow_body,
    "slow readers": slow_reader,
    "resets": reset_in_mid_stream,
    "huge bodies": huge_body,
    "huge chunks": huge_chunks,
    "bombs": bombs,
    "long lists": long_lists,
}


async def ask(target: Target) -> float:
    """Ask an ordinary question on a new connection; return the seconds until the answer.

    Raises RuntimeError if the status is not 200.
    """
    clock = asyncio.get_running_loop().time
    started = clock()
    # Connect and send without awaiting. Otherwise this loop's other tasks could run in between for
    # so long that the server closes the connection, on which it has read nothing.
    plain = socket.create_connection(("127.0.0.1", target.port))
    plain.sendall(target.chat("hello", max_tokens=1))
    reader, writer = await asyncio.open_connection(sock=plain, limit=1 << 12)
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(head.decode())
        await reader.readuntil(b"}")
        return clock() - started
    finally:
        writer.close()


async def _drip(target: Target, begin: bytes) -> None:
    reader, writer = await target.connect()
    writer.write(begin)
    dripping = asyncio.create_task(_drip_on(writer))
    await _until_cut_off(reader, writer)
    dripping.cancel()
    await asyncio.gather(dripping, return_exceptions=True)


async def _drip_on(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"a")
        await asyncio.sleep(SLOWLY_S)


async def _pour(target: Target, head: bytes, before: bytes, behind: bytes) -> None:
    reader, writer = await target.connect()
    try:
        writer.write(head)
        for _ in range(GIB // len(PIECE)):
            writer.write(before + PIECE + behind)
            await writer.drain()
        await reader.read(1)
    except ConnectionError:
        return  # the server has stopped reading
    finally:
        writer.transport.abort()


async def _until_cut_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        await reader.read()
    except ConnectionError:
        return
    finally:
        writer.transport.abort()
