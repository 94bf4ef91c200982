"""Clients without a key that send floods. Each returns when the server cuts it off or it is done.

Their requests cost a server more than a health check.
"""

from __future__ import annotations

import asyncio
from functools import partial

from tests.doubles.gateway.attacks import CHAT, Attack, Target

TIMES = 100  # number of requests, each sent after the last has ended
PIPELINED_BYTES = 222_000  # bytes of the requests that are sent at once
POURED_MIB = 25  # size of one request in MiB
FEWER_MIB = 10  # size in MiB of a request, for which the server takes seconds per MiB
HEALTH = "GET /healthz"
LARGEST = "/docs/vendor/swagger-ui-bundle.js"  # the largest answer without a key


def request(line: str, *fields: str) -> bytes:
    """Return a request without a key and without a body."""
    return "\r\n".join([f"{line} HTTP/1.1", "host: x", *fields, "", ""]).encode()


async def ask_often(target: Target, asked: bytes, times: int = TIMES) -> None:
    """Send a request `times` times on one connection, each time after the last answer."""
    reader, writer = await target.connect()
    try:
        for _ in range(times):
            writer.write(asked)
            head = await reader.readuntil(b"\r\n\r\n")
            if not asked.startswith(b"HEAD "):
                await reader.readexactly(_length(head))
    except (ConnectionError, asyncio.IncompleteReadError):
        return  # the server ended the connection
    finally:
        writer.transport.abort()


async def pipeline(target: Target, asked: bytes, answers: int = TIMES) -> None:
    """Send very many requests at once. Read `answers` answers, which the server sends slowly."""
    times = PIPELINED_BYTES // len(asked)
    reader, writer = await target.connect()
    sending = asyncio.create_task(_send(writer, asked * times))
    try:
        for _ in range(min(answers, times)):
            await reader.readexactly(_length(await reader.readuntil(b"\r\n\r\n")))
    except (ConnectionError, asyncio.IncompleteReadError):
        return
    finally:
        sending.cancel()
        writer.transport.abort()


async def pour(target: Target, head: bytes, piece: bytes, mib: int = POURED_MIB) -> None:
    """Send one request of `mib` MiB."""
    _, writer = await target.connect()
    many = piece * ((64 << 10) // len(piece))
    try:
        writer.write(head)
        for _ in range((mib << 20) // len(many)):
            writer.write(many)
            await writer.drain()
            await asyncio.sleep(0)
    except ConnectionError:
        return
    finally:
        writer.transport.abort()


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line[15:])
    raise RuntimeError(head.decode())


_CHUNKED = request(f"POST {CHAT}", "transfer-encoding: chunked")

FLOODS: dict[str, Attack] = {
    # all other floods are compared with health checks
    "health checks": partial(ask_often, asked=request(HEALTH)),
    "descriptions": partial(ask_often, asked=request("GET /openapi.json")),
    "packed descriptions": partial(
        ask_often, asked=request("GET /openapi.json", "accept-encoding: gzip")
    ),
    "the largest file": partial(ask_often, asked=request(f"GET {LARGEST}")),
    "wrong methods": partial(ask_often, asked=request("DELETE /healthz")),
    "options": partial(ask_often, asked=request(f"OPTIONS {CHAT}")),
    "heads": partial(ask_often, asked=request("HEAD /healthz")),
    "wrong paths": partial(ask_often, asked=request("GET /nothing")),
    "no key": partial(ask_often, asked=request("GET /v1/models")),
    "parameters": partial(ask_often, asked=request("GET /healthz?" + "a=&" * 99)),
    "more parameters": partial(ask_often, asked=request("GET /healthz?" + "a=&" * 20_000)),
    "escapes": partial(ask_often, asked=request("GET /" + "%41" * 1300)),
    "fields": partial(ask_often, asked=request(HEALTH, *["a: b"] * 90)),
    "cookies": partial(ask_often, asked=request(HEALTH, "cookie: " + "a=b;" * 12_000)),
    "pipelined health checks": partial(pipeline, asked=request(HEALTH)),
    "pipelined wrong methods": partial(pipeline, asked=request("DELETE /healthz")),
    "trailers": partial(pour, head=_CHUNKED + b"2\r\n{}\r\n0\r\n", piece=b"aN: b\r\n"),
    "a trailer": partial(pour, head=_CHUNKED + b"2\r\n{}\r\n0\r\na: ", piece=b"b"),
    "extensions": partial(pour, head=_CHUNKED, piece=b"1;" + b"x" * 1000 + b"\r\na\r\n"),
    "an extension": partial(pour, head=_CHUNKED + b"1;", piece=b"x"),
    "chunks of a byte": partial(pour, head=_CHUNKED, piece=b"1\r\na\r\n"),
    "chunks of blank lines": partial(
        pour, head=_CHUNKED, piece=b"8\r\n\r\n\r\n\r\n\r\n\r\n", mib=FEWER_MIB
    ),
    "empty lines": partial(pour, head=b"", piece=b"\r\n"),
    "a head": partial(pour, head=request(HEALTH)[:-2], piece=b"a: b\r\n"),
    "a body": partial(pour, head=request(f"POST {CHAT}", f"content-length: {1 << 40}"), piece=b"a"),
}
