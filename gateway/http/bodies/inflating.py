"""The inflating of gzip bodies in pieces as they come, within limits.

A kilobyte can become a megabyte, so the inflated bytes are counted. Members that inflate to little
or nothing cost time too, so members are counted as well.
"""

import zlib
from collections.abc import Iterator

from gateway.errors import BadRequest

# maximum number of members of a body; bgzip, which writes the most, writes a member for each 64 KiB
MOST_MEMBERS = 1024
_GZIP = 16 + zlib.MAX_WBITS
_PIECE = 1 << 18  # number of bytes inflated before other requests get a turn
# number of compressed bytes given to zlib at once, since zlib copies all bytes that it leaves
# unread
_SLICE = 1 << 14


class Inflating:
    """The inflating of one gzip body, which may have several members."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP)
        self._has_begun = False
        self._ended = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the inflated content of `data` in small pieces.

        A piece may be empty. Raises BadRequest for data that is not gzip or has over MOST_MEMBERS
        members.
        """
        left = memoryview(data)
        while left:
            if self._member.eof:
                self._begin_next()
            self._has_begun = True
            taken = left[:_SLICE]
            try:
                yield self._member.decompress(taken, _PIECE)
            except zlib.error:
                raise BadRequest("the body is not valid gzip", code="invalid_encoding") from None
            member = self._member
            rest = member.unused_data if member.eof else member.unconsumed_tail
            left = left[len(taken) - len(rest) :]

    def end(self) -> None:
        """End the body; raise BadRequest if the last member is cut off."""
        if self._has_begun and not self._member.eof:
            raise BadRequest("the gzip body is cut off", code="invalid_encoding")

    def _begin_next(self) -> None:
        self._ended += 1
        if self._ended == MOST_MEMBERS:
            raise BadRequest(
                f"the gzip body has more than {MOST_MEMBERS} members", code="invalid_encoding"
            )
        self._member = zlib.decompressobj(_GZIP)
