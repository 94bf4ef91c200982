"""The framing of requests: the end and size of a head, and the bytes around a body's pieces.

The cost of a head depends on its bytes, its fields and the parameters in its query. The framework
parses all of these before a key is checked.

Around the pieces of a chunked body are the sizes of chunks, their extensions, and trailers. HTTP
limits none of these. Here this framing uses up a credit, which grows with each byte of the body.
The credit is enough for any chunk, even of a single byte, but not for an endless extension or
trailer. The parser decides whether a head is valid; `fault_of_head` refuses some that it accepts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

from gateway.errors import BadRequest, HeadTooLarge, UriTooLong

MAX_REQUEST_LINE = 4096
MAX_FIELDS = 100  # maximum number of fields of a head, as with Apache and HAProxy
MAX_PARAMETERS = 100
# versions of HTTP whose framing is known; the parser would read 0.9 and 2.0 as 1.1
_VERSIONS = ("1.0", "1.1")
_END = re.compile(rb"\n\r?\n")
_UPGRADE = re.compile(rb"(\nupgrad)e:", re.IGNORECASE)
# matches the characters of a host and a port
_HOST = re.compile(rb"[\w.~!$&'()*+,;=%:\[\]-]*", re.ASCII)
# bytes of a chunked body parsed at once, which takes 0.7 ms if all chunks have one byte
SLICE = 4 << 10
_MAX_CREDIT = 1 << 10  # maximum bytes of framing without any byte of the body
_EARNED = 8  # bytes of framing credit for each byte of the body
_MAX_TRAILERS = 512
_MESSAGE_END = b"\r\n\r\n"

UNREADABLE = BadRequest("this is not a valid HTTP request", code="invalid_http")
FRAMING_TOO_LARGE = HeadTooLarge(
    "the chunk extensions or the trailers are too large", code="framing_too_large"
)


class HeadFraming:
    """The framing of a connection's heads, one head after another."""

    __slots__ = ("_max_bytes", "_searched", "_skipped")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._skipped = 0  # number of bytes of empty lines before the head
        self._searched = 0  # number of received bytes that are known to contain no end of the head

    def take(self, received: bytearray) -> bytes | None:
        """Remove a head from the received bytes; return None while the head is incomplete.

        Raises HeadTooLarge or UriTooLong, even before the head is whole. Bytes that cannot be a
        head are returned unchanged, for the parser to refuse at once.
        """
        self._skip_empty_lines(received)
        end = self._end(received)
        self._check(received, len(received) if end is None else end)
        if end is None:
            return None
        head = _without_upgrade(bytes(received[:end]))
        del received[:end]
        self._skipped = self._searched = 0
        return head

    def _skip_empty_lines(self, received: bytearray) -> None:
        """Skip empty lines before a head, since some clients send an empty line after a body."""
        if received.startswith((b"\r", b"\n")):
            size = len(received) - len(received.lstrip(b"\r\n"))
            del received[:size]
            self._skipped += size

    def _end(self, received: bytearray) -> int | None:
        if received and not received[:1].isupper():
            return len(received)
        found = _END.search(received, self._searched)
        self._searched = max(0, len(received) - 2)
        return found.end() if found else None

    def _check(self, received: bytearray, size: int) -> None:
        newline = received.find(b"\n", 0, size)
        line = size if newline < 0 else newline
        if line > MAX_REQUEST_LINE:
            raise UriTooLong(f"the request line has more than {MAX_REQUEST_LINE} bytes")
        if received.count(b"&", 0, line) >= MAX_PARAMETERS:
            raise UriTooLong(f"the query has more than {MAX_PARAMETERS} parameters")
        if self._skipped + size > self._max_bytes:
            raise HeadTooLarge("the request's head is too large")
        if received.count(b"\n", line, size) > MAX_FIELDS + 2:
            raise HeadTooLarge(f"the request's head has more than {MAX_FIELDS} fields")


def path_in(received: bytes | bytearray) -> str:
    """Return the received part of the path that a head asks for, or ""."""
    words = bytes(received).partition(b"\n")[0].split(b" ", 2)
    return "" if len(words) < 2 else unquote(words[1].partition(b"?")[0].decode("latin-1"))


def fault_of_head(fields: list[tuple[bytes, bytes]], version: str) -> str:
    """Return why a head that the parser takes is refused, or "" if it is served."""
    if version not in _VERSIONS:
        return "another version of HTTP"
    if not _names_one_host(fields, version):
        return "not one host"
    return "" if _has_known_coding(fields, version) else "another transfer coding"


def _names_one_host(fields: Iterable[tuple[bytes, bytes]], version: str) -> bool:
    """Return whether a head has exactly one field `Host`, as HTTP 1.1 requires (RFC 9112, 3.2).

    `fields` have names in lower case. With two fields, two servers could choose different hosts.
    HTTP 1.0 does not require the field.
    """
    hosts = [value for name, value in fields if name == b"host"]
    if not hosts:
        return version == "1.0"
    return len(hosts) == 1 and _HOST.fullmatch(hosts[0]) is not None


def _has_known_coding(fields: Iterable[tuple[bytes, bytes]], version: str) -> bool:
    """Return whether a body has no transfer coding, or is chunked alone, as HTTP 1.1 allows.

    The parser would take `gzip, chunked`, and leave the body compressed. With HTTP 1.0, a proxy may
    not know the field, and find another end of the body (RFC 9112, 6.1).
    """
    codings = [value.lower() for name, value in fields if name == b"transfer-encoding"]
    return not codings or (codings == [b"chunked"] and version == "1.1")


def _without_upgrade(head: bytes) -> bytes:
    """Rename any field `Upgrade` of `head`.

    This server ignores the field, as a server may, but the parser would leave the body to the new
    protocol. Java's HTTP client offers HTTP/2 with this field in its first request.
    """
    return _UPGRADE.sub(rb"\1-:", head)


class BodyFraming:
    """The framing of a request's body of `length` bytes, or of a chunked body without `length`."""

    __slots__ = ("_credit", "_in_slice", "_left", "_tail", "_trailers", "pieces")

    def __init__(self, length: int | None) -> None:
        self._left = length
        self._credit = _MAX_CREDIT
        self._trailers = 0
        self._in_slice = 0  # number of the body's bytes, without framing, in the latest slice
        self.pieces = 0
        self._tail = b""  # last bytes of the latest slice; the message's end may begin in them

    @classmethod
    def of(cls, headers: list[tuple[bytes, bytes]]) -> BodyFraming:
        """Read the framing from a valid head's fields. Their names are in lower case."""
        fields = dict(headers)
        if b"transfer-encoding" in fields:
            return cls(None)
        return cls(int(fields.get(b"content-length", b"0")))

    @property
    def is_chunked(self) -> bool:
        """True if the body's length is not declared."""
        return self._left is None

    def take(self, received: bytearray) -> bytes:
        """Remove the received bytes up to the next message, and return them."""
        size = self._left if self._left is not None else self._chunked_slice(received)
        taken = bytes(received[:size])
        del received[:size]
        return taken

    def _chunked_slice(self, received: bytearray) -> int:
        window = self._tail + received[:SLICE]
        end = window.find(_MESSAGE_END)
        return (len(window) if end < 0 else end + len(_MESSAGE_END)) - len(self._tail)

    def on_body(self, size: int) -> None:
        """Count the bytes of the parsed slice that belong to the body."""
        self._in_slice += size
        self.pieces += 1

    def on_trailer(self, name: bytes, value: bytes) -> None:
        """Count a field that comes after the body."""
        self._trailers += len(name) + len(value)

    def is_within_bounds(self, parsed: bytes) -> bool:
        """Return whether the framing, including the slice `parsed`, is within its limits."""
        body, self._in_slice = self._in_slice, 0
        if self._left is not None:
            self._left -= body
            return True
        self._tail = (self._tail + parsed)[1 - len(_MESSAGE_END) :]
        self._credit = min(_MAX_CREDIT, self._credit + _EARNED * body - (len(parsed) - body))
        return self._credit >= 0 and self._trailers <= _MAX_TRAILERS
