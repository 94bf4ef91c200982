"""The reading of a request's body within its limit, and its inflating."""

import asyncio

from starlette.requests import Request

from gateway.errors import BodyTooLarge, UnsupportedEncoding
from gateway.http.bodies.body import Body
from gateway.http.bodies.inflating import Inflating
from gateway.http.body_memory import SMALL, BodyLease

_PLAIN = {"", "identity"}


async def read_body(request: Request, max_bytes: int, lease: BodyLease) -> Body:
    """Read the whole body; raise BodyTooLarge once it is known to exceed `max_bytes`.

    Memory for a body of declared length is reserved at once, and for any other body as its bytes
    come. A declared length that is too large is refused at once. The bytes of other bodies are
    counted as they come, or as gzip is inflated. Raises UnsupportedEncoding for other encodings,
    BadRequest for broken gzip, and the errors of `lease` if there is no room.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding == "gzip":
        return await _read_inflated(request, max_bytes, lease)
    if encoding not in _PLAIN:
        raise UnsupportedEncoding("of encodings only gzip is read; send the body as it is")
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit():
        if int(declared[:20]) > max_bytes:
            raise _too_large(max_bytes)
        await lease.grow(int(declared))
    body = bytearray()
    async for piece in request.stream():
        if len(body) + len(piece) > max_bytes:
            raise _too_large(max_bytes)
        if len(body) + len(piece) > lease.size:
            await lease.grow(min(max(2 * len(body), len(piece), SMALL), max_bytes))
        body += piece
    return body


async def _read_inflated(request: Request, max_bytes: int, lease: BodyLease) -> Body:
    """Read a gzip body whose compressed and inflated content have at most `max_bytes` each."""
    body, inflating, received = bytearray(), Inflating(), 0
    async for data in request.stream():
        received += len(data)
        if received > max_bytes:
            raise _too_large(max_bytes)
        for piece in inflating.feed(data):
            if len(body) + len(piece) > max_bytes:
                raise _too_large(max_bytes)
            if len(body) + len(piece) > lease.size:
                await lease.grow(min(max(2 * len(body), len(piece), SMALL), max_bytes))
            body += piece
            await asyncio.sleep(0)
    inflating.end()
    return body


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body has more than {max_bytes} bytes")
