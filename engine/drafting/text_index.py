"""An index of a growing text of tokens, which finds a sequence's last tokens in the text.

There is a table for runs of 1, 2 and 4 tokens each. It maps the hash of a run to the latest place
after that run. A search looks up the longest run first, and compares the place found with the text.
A collision of hashes can therefore only hide a place. The tables take at most 0.8 MiB. NumPy
indexes many places together (32,000 in a millisecond).
"""

from __future__ import annotations

import numpy as np

from prefix_cache.hashing import TokenIds

RUNS = (1, 2, 4)  # lengths of the indexed runs in tokens; each is twice the one before
LONGEST = 32  # maximum number of tokens compared, backwards from a place
NEAR = 64  # maximum number of tokens between a start and a place near it
_LONGEST_RUN = RUNS[-1]
_TABLE_BITS = (8, 16)  # minimum and maximum bits of a table index
# The hash of a run is the hash of its second half plus a multiple of the first half's hash.
_ONE, _TWO = 0x85EBCA77, 0xC2B2AE3D
_MIX = 0x9E3779B1
_BITS = 32
_BYTES = 4
_MASK = (1 << _BITS) - 1
_AT_ONCE = 12  # number of places above which NumPy is faster than a loop


class TextIndex:
    """An index of a text: the latest place after each run of tokens. Place p is after p tokens."""

    __slots__ = ("_arrays", "_places", "_shift", "end", "text", "tokens")

    def __init__(self, text: TokenIds) -> None:
        """Prepare to index `text` (int32), whose tokens at the end may still be unknown."""
        least, most = _TABLE_BITS
        bits = min(max(len(text).bit_length(), least), most)
        self._shift = _BITS - bits
        self.text = text
        self.tokens = text.data
        self._arrays = np.zeros((len(RUNS), 1 << bits), np.int32)  # 0 means no place
        self._places = [row.data for row in self._arrays]
        self.end = 0

    def extend(self, end: int) -> None:
        """Index the places up to `end`. All tokens before `end` must be known."""
        if end <= self.end:
            return
        if end - self.end > _AT_ONCE:
            self._extend_at_once(end)
            return
        shift, tokens = self._shift, self.tokens
        for place in range(self.end + 1, end + 1):
            first = place - _LONGEST_RUN
            last = tokens[first if first > 0 else 0 : place].tolist()
            for places, key in zip(self._places, _hashes(last), strict=False):
                places[(key * _MIX & _MASK) >> shift] = place
        self.end = end

    def find(self, tokens: memoryview, end: int) -> tuple[int, int] | None:
        """Find the longest indexed run that ends `tokens[:end]`. Return the latest place after it.

        `tokens` are int32. Also return how many tokens before the place equal the last tokens, up
        to `LONGEST`. Returns None without a match.
        """
        if end < _LONGEST_RUN:
            return self._find_short(tokens, end)
        shift, text = self._shift, self.tokens
        ones, twos, fours = self._places
        first, second, third, last = tokens[end - _LONGEST_RUN : end].tolist()
        pair = last + third * _ONE
        place = fours[((pair + (second + first * _ONE) * _TWO) * _MIX & _MASK) >> shift]
        if place and (length := self._match(tokens, end, place)) >= _LONGEST_RUN:
            return place, length
        place = twos[(pair * _MIX & _MASK) >> shift]
        if place and text[place - 1] == last and text[place - 2] == third:
            return place, 3 if place > 2 and text[place - 3] == second else 2
        place = ones[(last * _MIX & _MASK) >> shift]
        return (place, 1) if place and text[place - 1] == last else None

    def find_near(self, tokens: memoryview, end: int, start: int, length: int) -> int | None:
        """Find a run of tokens that ends in the text at `start` or up to `NEAR` tokens later.

        The run is the last `length` tokens of `tokens[:end]`. Returns the first place after the
        run, or None.
        """
        first = start - length if start > length else 0
        text = self.tokens[first : min(start + NEAR, self.end)].tobytes()
        run = tokens[end - length : end].tobytes()
        at = text.find(run)
        while at % _BYTES and at > 0:  # not at a token's first byte
            at = text.find(run, at + 1)
        return first + at // _BYTES + length if at >= 0 else None

    def _find_short(self, tokens: memoryview, end: int) -> tuple[int, int] | None:
        for at, run in reversed(list(enumerate(RUNS[:-1]))):
            if end >= run:
                key = _hashes(tokens[end - run : end].tolist())[at]
                place = self._places[at][(key * _MIX & _MASK) >> self._shift]
                if place and (length := self._match(tokens, end, place)) >= run:
                    return place, length
        return None

    def _match(self, tokens: memoryview, end: int, place: int) -> int:
        """Count the tokens before `place` that equal the tokens before `end`, from the last on."""
        size = min(end, place, LONGEST)
        differs = _packed(tokens, end, size) ^ _packed(self.tokens, place, size)
        return size - (differs.bit_length() + _BITS - 1) // _BITS

    def _extend_at_once(self, end: int) -> None:
        before = max(self.end + 1 - _LONGEST_RUN, 0)
        hashes = self.text[before:end].astype(np.uint32)
        shift, start = np.uint32(self._shift), before + 1  # first place with a run of this length
        for run, array in zip(RUNS, self._arrays, strict=True):
            if run > 1:
                half = run // 2
                if len(hashes) <= half:
                    break
                factor = np.uint32(_ONE if half == 1 else _TWO)
                hashes = hashes[half:] + hashes[:-half] * factor
                start += half
            new = hashes[max(self.end + 1 - start, 0) :]
            places = np.arange(end + 1 - len(new), end + 1, dtype=np.int32)
            array[new * np.uint32(_MIX) >> shift] = places  # for equal keys, NumPy keeps the last
        self.end = end


def _hashes(last: list[int]) -> list[int]:
    """Return the hashes of the runs at the end of the tokens `last`, the shortest run first.

    The hashes are correct modulo 2^32.
    """
    hashes = last[-1:]
    if len(last) > 1:
        hashes.append(last[-1] + last[-2] * _ONE)
    if len(last) >= _LONGEST_RUN:
        hashes.append(hashes[1] + (last[-3] + last[-4] * _ONE) * _TWO)
    return hashes


def _packed(tokens: memoryview, end: int, count: int) -> int:
    """Pack the `count` tokens before `end` into a number, the last token in the highest bits."""
    return int.from_bytes(tokens[end - count : end], "little")
