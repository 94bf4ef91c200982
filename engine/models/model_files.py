"""The reading of a model's small files. They are not trusted.

Only regular files are read, because reading a pipe would block. Files of more than MAX_BYTES are
refused. JSON has a maximum depth, because recursive code that reads the result could exhaust the
stack.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

import msgspec

MAX_BYTES = 128 << 20  # the largest known tokenizer files have about 35 MB
MAX_DEPTH = 64  # the deepest known files have about 8 levels
T = TypeVar("T")

_TEXT = re.compile(rb'"[^"]*"')
_INFINITY = re.compile(rb'("(?:[^"\\]|\\.)*")|\bInfinity\b')
_INFINITE = b'{"__float__":"Infinity"}'
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_OTHER_BYTES = bytes(byte for byte in range(256) if byte not in b'"[]{}')


class NoRegularFile(OSError):
    """An error: a path names a pipe, a device or a socket, not a regular file."""


class FileTooLarge(OSError):
    """An error: a file has more than `MAX_BYTES`."""


class NestedTooDeeply(msgspec.DecodeError):
    """An error: JSON has more than `MAX_DEPTH` levels."""


def opened(path: Path) -> BufferedReader:
    """Open a regular file, or a link to one. Raises OSError for other kinds, without blocking."""
    file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115 (the caller closes it)
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise NoRegularFile(errno.EINVAL, "it is no regular file")


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def read_file(path: Path) -> bytes:
    """Read a whole file. Raises OSError if the file is unreadable, not regular or too large."""
    with opened(path) as file:
        if os.fstat(file.fileno()).st_size > MAX_BYTES:
            raise FileTooLarge(errno.EFBIG, f"it has more than {MAX_BYTES >> 20} MiB")
        return file.read()


def read_text(path: Path) -> str:
    """Read a text. Raises UnicodeDecodeError, and the errors of `read_file`.

    Line endings of all kinds become line feeds.
    """
    return read_file(path).decode().replace("\r\n", "\n").replace("\r", "\n")


def decode(content: bytes, kind: type[T]) -> T:
    """Decode JSON as a `kind`.

    JSON has no infinite numbers, so `Infinity` is decoded as the object that `transformers` 5
    writes instead. Raises msgspec.DecodeError and UnicodeDecodeError.
    """
    try:
        decoded = msgspec.json.decode(content, type=kind)
    except RecursionError:
        raise NestedTooDeeply(_too_deep()) from None
    except msgspec.DecodeError:
        proper = _INFINITY.sub(lambda found: found[1] or _INFINITE, content)
        if proper == content:
            raise
        return decode(proper, kind)
    if _is_deep(content):
        raise NestedTooDeeply(_too_deep())
    return decoded


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file. Raises the errors of `read_file` and `decode`."""
    return decode(read_file(path), dict[str, Any])


def _too_deep() -> str:
    return f"JSON is nested more than {MAX_DEPTH} levels deep"


def _is_deep(content: bytes) -> bool:
    plain = content.replace(rb"\\", b"").replace(rb"\"", b"")
    brackets = _TEXT.sub(b"", plain.translate(None, _OTHER_BYTES)).translate(_BRACKETS)
    for _ in range(MAX_DEPTH):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)
