"""The characters of a JSON body outside of its strings, found before the body is parsed.

The search is vectorised and reads pieces, because a body may be long and consist only of brackets
and quotes.

Elsewhere: which characters or numbers are too many (`body.py`).
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Text = bytes | bytearray | memoryview

PIECE = 1 << 18  # number of bytes scanned before other threads get a turn


def outside_strings(spelled: Text, passed_over: bytes = b"") -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the characters outside of strings, piece by piece, except those in `passed_over`.

    `passed_over` must not contain a quote.
    """
    quotes = 0
    for piece in pieces_of(spelled):
        if b"\\" in piece:
            piece = piece.replace(rb"\\", b"").replace(rb"\"", b"")
        chars = np.frombuffer(piece.translate(None, passed_over), np.uint8)
        is_quote = chars == ord('"')
        in_string = (quotes + np.cumsum(is_quote, dtype=np.uint8)) & 1
        is_outside: npt.NDArray[np.bool_] = ~(is_quote | in_string.astype(np.bool_))
        quotes = (quotes + int(np.count_nonzero(is_quote))) & 1
        yield np.compress(is_outside, chars)


def pieces_of(spelled: Text) -> Iterator[bytes]:
    """Yield copies of parts of `spelled`, never cut between a backslash and the next character."""
    start, view = 0, memoryview(spelled)
    while start < len(view):
        piece = bytes(view[start : start + PIECE])
        backslashes = len(piece) - len(piece.rstrip(b"\\"))
        if backslashes % 2 and start + len(piece) < len(view):
            piece += bytes(view[start + len(piece) : start + len(piece) + 1])
        yield piece
        start += len(piece)
