"""The page's own files, read and compressed once, and the headers that block foreign content.

The files are the same for everyone, so they need no key.
"""

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from gateway.errors import NotFound
from gateway.http.answers.packed import Packed

STATIC = Path(__file__).parent / "static"
API = Path(__file__).parent / "api"
_GZIP = ".gz"  # ending of the names of files that are stored and sent compressed
_PIECE = 1 << 16
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".md": "text/plain; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
# Scripts, styles and data load only from this origin; nothing is inline or framed.
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # the browser asks each time, and is answered with 304 if its copy is current
    "cache-control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """A page's file as it is stored, and the headers with which it is sent."""

    content: bytes
    is_packed: bool
    media_type: str
    etag: str

    def packed(self) -> Packed:
        """Compress the content, unless its file is stored compressed."""
        return Packed(b"", self.content) if self.is_packed else Packed.of(self.content)


class PageFiles:
    """The few files of a folder by their paths in the folder, read once."""

    def __init__(self, folder: Path = STATIC) -> None:
        self._files = {
            path.relative_to(folder).as_posix().removesuffix(_GZIP): _read(path)
            for path in folder.rglob("*")
            if _kind(path) in _TYPES and path.is_file()
        }
        self._packed: dict[str, Packed] = {}

    def answer(self, name: str, request: Request) -> Response:
        """Answer with the file, or 304 for a client that has it; raise NotFound."""
        found = self._files.get(name)
        if found is None:
            raise NotFound("there is no such route", code="unknown_url")
        headers = {**_HEADERS, "etag": found.etag}
        if found.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        content = self._packed.get(name)
        if content is None:
            content = self._packed[name] = found.packed()
        packed = content.packed
        if content.plain or packed is None:
            return content.answer(request, headers, found.media_type)
        # The content is sent compressed to every client, since unpacking it would take time.
        headers |= {"content-encoding": "gzip", "content-length": str(len(packed))}
        return StreamingResponse(_pieces(packed), 200, headers, found.media_type)


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    """Yield pieces as the client reads them, so that at most one unread piece is in memory."""
    for start in range(0, len(content), _PIECE):
        yield content[start : start + _PIECE]


def _read(path: Path) -> PageFile:
    content = path.read_bytes()
    etag = f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'
    return PageFile(content, path.suffix == _GZIP, _TYPES[_kind(path)], etag)


def _kind(path: Path) -> str:
    return path.with_suffix("").suffix if path.suffix == _GZIP else path.suffix
