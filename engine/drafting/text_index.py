"""An index of a growing text of tokens, which finds a sequence's last tokens in the text.

The index uses hash chains over runs of two tokens, like compressors with a sliding window (LZ77,
RFC 1951). A table has the latest place for each hash. Each place refers to the last earlier place
with the same hash. Only the newest `WINDOW` places are kept, so an index takes at most 0.8 MiB.
Arrays index many places at once (32,000 in half a millisecond).
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from prefix_cache.hashing import TokenIds

RUN = 2  # tokens of the shortest match
LONGEST = 32  # maximum number of compared tokens before a place
WINDOW = 1 << 17  # maximum number of places kept
MOST_TRIED = 16  # maximum number of places that a search compares
_TABLE_BITS = (8, 16)  # minimum and maximum number of bits of a hash
_FIRST, _SECOND = 0x85EBCA77, 0xC2B2AE3D
_TOKEN_BITS = 32
_MASK = (1 << _TOKEN_BITS) - 1
_AT_ONCE = 48  # number of places from which arrays are faster than a loop


class TextIndex:
    """The places of a text after each run of two tokens. Place p comes after p tokens."""

    __slots__ = (
        "_earlier",
        "_earlier_array",
        "_latest",
        "_latest_array",
        "_shift",
        "_wrap",
        "end",
        "text",
        "tokens",
    )

    def __init__(self, text: TokenIds) -> None:
        """Prepare to index `text` (int32), whose later tokens may still be unknown."""
        least, most = _TABLE_BITS
        bits = min(max(len(text).bit_length(), least), most)
        self._shift = _TOKEN_BITS - bits
        self._wrap = min(1 << len(text).bit_length(), WINDOW) - 1
        self.text = text
        self.tokens = text.data
        self._latest_array = np.full(1 << bits, -1, np.int32)
        self._earlier_array = np.full(self._wrap + 1, -1, np.int32)
        self._latest = self._latest_array.data
        self._earlier = self._earlier_array.data
        self.end = RUN - 1

    def extend(self, end: int) -> None:
        """Index the places up to `end`. All tokens before `end` must be known."""
        if end - self.end > _AT_ONCE:
            self._extend_at_once(end)
            return
        latest, earlier, wrap, shift = self._latest, self._earlier, self._wrap, self._shift
        place, first, second = self.end, _FIRST, _SECOND
        for before, token in pairwise(self.tokens[place - 1 : end].tolist()):
            place += 1
            key = (before * first + token * second & _MASK) >> shift
            earlier[place & wrap] = latest[key]
            latest[key] = place
        self.end = max(end, self.end)

    def find(self, tokens: memoryview, end: int) -> tuple[int, int] | None:
        """Return the place after the longest match with the end of `tokens[:end]`, and its length.

        `tokens` are int32. The latest of equally long matches is returned, or None without a match.
        Lengths are from `RUN` to `LONGEST`. At most `MOST_TRIED` places are compared, the latest
        first.
        """
        if end < RUN:
            return None
        further = tokens[end - 2]
        mixed = further * _FIRST + tokens[end - 1] * _SECOND
        place = self._latest[(mixed & _MASK) >> self._shift]
        if place < RUN:
            return None
        wrap, text, earlier = self._wrap, self.tokens, self._earlier
        oldest = self.end - wrap
        if oldest < RUN:
            oldest = RUN
        elif place < oldest:
            return None
        wanted, size = 0, end if end < LONGEST else LONGEST
        best, longest = 0, RUN - 1
        for _ in range(MOST_TRIED):
            # A longer match needs one more equal token, and this check skips most places.
            if place > longest and text[place - 1 - longest] == further:
                wanted = wanted or _packed(tokens, end, size)
                length = self._match(wanted, size, place)
                if length > longest:
                    best, longest = place, length
                    if length == size:
                        break
                    further = tokens[end - 1 - length]
            after, place = place, earlier[place & wrap]
            if not oldest <= place < after:
                break
        return (best, longest) if best else None

    def _match(self, wanted: int, size: int, place: int) -> int:
        """Count the tokens before `place` that equal the last `size` tokens, from the last on.

        `wanted` packs the last tokens, with the last token in the highest bits.
        """
        if place >= size:
            differs = wanted ^ _packed(self.tokens, place, size)
            return size - (differs.bit_length() + _TOKEN_BITS - 1) // _TOKEN_BITS
        differs = wanted ^ _packed(self.tokens, place, place) << _TOKEN_BITS * (size - place)
        return min(size - -(-differs.bit_length() // _TOKEN_BITS), place)

    def _extend_at_once(self, end: int) -> None:
        start = max(self.end + 1, end - self._wrap)
        text = self.text[start - RUN : end].astype(np.uint32)
        first, second = np.uint32(_FIRST), np.uint32(_SECOND)
        mixed = text[:-1] * first + text[1:] * second
        keys = (mixed >> np.uint32(self._shift)).astype(np.uint16)
        order = np.argsort(keys, kind="stable").astype(np.int32)
        keys, places = keys[order], order + np.int32(start)
        is_first = np.ones(len(keys), np.bool_)
        np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
        earlier = np.empty_like(places)
        earlier[1:] = places[:-1]
        earlier[is_first] = self._latest_array[keys[is_first]]
        is_last = np.append(is_first[1:], True)
        self._earlier_array[places & self._wrap] = earlier
        self._latest_array[keys[is_last]] = places[is_last]
        self.end = end


def _packed(tokens: memoryview, end: int, count: int) -> int:
    """Pack the `count` tokens before `end` into a number, the last token in the highest bits."""
    return int.from_bytes(tokens[end - count : end], "little")
