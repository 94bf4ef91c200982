"""Bodies in gzip: inflated as they come, a piece at a time, so that a bound on their content holds.

A kilobyte can become a megabyte, so what is counted is what comes out. Empty members, of which
nothing comes out, are bounded by the bytes that go in.

Knows: gzip. Does not know: where the pieces come from, or what room there is for them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from gateway.errors import BadRequest

_GZIP = 16 + zlib.MAX_WBITS
_PIECE = 1 << 18  # bytes that are inflated without giving way to other requests


class Inflating:
    """One body, which may have several members."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP)
        self._has_begun = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What comes out of the next `data`, in pieces; BadRequest for what is no gzip."""
        while data:
            if self._member.eof:
                self._member = zlib.decompressobj(_GZIP)
            self._has_begun = True
            try:
                piece = self._member.decompress(data, _PIECE)
            except zlib.error:
                raise BadRequest("the body is not valid gzip", code="invalid_encoding") from None
            if piece:
                yield piece
            data = self._member.unused_data if self._member.eof else self._member.unconsumed_tail

    def end(self) -> None:
        """There is no more; BadRequest if the last member is cut off."""
        if self._has_begun and not self._member.eof:
            raise BadRequest("the gzip body is cut off", code="invalid_encoding")
