"""The upper and lower cases of characters, for patterns that ignore case."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from functools import cache, lru_cache
from itertools import chain

from engine.grammars.syntax.expression import MAX_CODE_POINT, Ranges

_MANY = 4096  # in a class with more characters than this, only cased characters are examined
LAST_CASED = 0x1FFFF  # no character after this one has another case
_KEPT = 256


@lru_cache(_KEPT)
def other_cases(ranges: Ranges) -> Ranges:
    """List the other cases of the characters in `ranges` that are not in `ranges` themselves.

    The result is cached, because a pattern may have hundreds of large classes.
    """
    codes: Iterable[int] = chain.from_iterable(range(low, high + 1) for low, high in ranges)
    if sum(high - low for low, high in ranges) > _MANY:
        codes = (code for code in _with_cases() if _holds(ranges, code))
    others = {other for code in codes for other in _cases_of(code)}
    return tuple((code, code) for code in sorted(others) if not _holds(ranges, code))


@cache
def _with_cases() -> tuple[int, ...]:
    return tuple(code for code in range(LAST_CASED + 1) if {*_cases_of(code)} != {code})


def _cases_of(code: int) -> list[int]:
    char = chr(code)
    return [ord(other) for other in (char.lower(), char.upper()) if len(other) == 1]


def _holds(ranges: Ranges, code: int) -> bool:
    at = bisect_right(ranges, (code, MAX_CODE_POINT))
    return at > 0 and ranges[at - 1][1] >= code
