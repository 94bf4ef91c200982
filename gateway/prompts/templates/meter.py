"""The meter of a rendering: its steps, its time, and the sizes of its values."""

import time
from collections.abc import ItemsView, Iterable, KeysView, ValuesView
from itertools import chain
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

# maximum steps of a rendering; scanning 4,096 messages once for each message takes half of these
MOST_STEPS = 1 << 23
MOST_CHARS = 1 << 26
# maximum number of values of a list, or of values compared, sorted or written at once
MOST_VALUES = 1 << 22
_MOST_WRITTEN = 1 << 27
_MOST_SECONDS = 5.0  # maximum processor time of a rendering in seconds
_LOOKS = 1 << 6
_OF_A_VALUE = 24  # approximate number of characters of a value that is no text
_HOLDERS = (list, tuple, dict, KeysView, ValuesView, ItemsView)


class TooMuchWork(Exception):
    """The error of a template that exceeds its limit of work."""


class Meter:
    """The meter of one rendering."""

    def __init__(self, most_steps: int) -> None:
        self._steps_left = most_steps
        self._chars_left = _MOST_WRITTEN
        self._until = time.thread_time() + _MOST_SECONDS

    def step(self) -> None:
        """Count a step. Read the clock after every `_LOOKS` steps."""
        self._steps_left -= 1
        if self._steps_left < 0:
            raise TooMuchWork
        if not self._steps_left % _LOOKS:
            self.look()

    def look(self) -> None:
        """Read the clock; raise TooMuchWork when the time is up."""
        if time.thread_time() > self._until:
            raise TooMuchWork

    def wrote(self, chars: int) -> None:
        """Count written characters."""
        self._chars_left -= chars
        if self._chars_left < 0:
            raise TooMuchWork


def check_size(chars: int) -> None:
    """Raise TooMuchWork for a text of more than MOST_CHARS characters."""
    if chars > MOST_CHARS:
        raise TooMuchWork


def check_count(values: int) -> None:
    """Raise TooMuchWork for a list of more than MOST_VALUES values."""
    if values > MOST_VALUES:
        raise TooMuchWork


def extent(value: Any, indent: int = 0) -> int:
    """Estimate the characters of `value` when written; raise TooMuchWork for too many.

    A value that occurs several times is counted each time. `indent` is the number of blanks before
    a value for each level of nesting.
    """
    if isinstance(value, str):
        check_size(len(value))
        return len(value)
    chars = values = depth = 0
    level: list[Any] = [value]
    while level:
        values += len(level)
        check_count(values)
        chars += sum(map(_chars_of, level)) + len(level) * indent * depth
        check_size(chars)
        check_count(sum(map(_count_in, level)))
        level = [inner for one in level for inner in _values_in(one)]
        depth += 1
    return chars


def _chars_of(one: Any) -> int:
    if isinstance(one, str):
        return len(one)
    return _OF_A_VALUE + (one.bit_length() // 3 if isinstance(one, int) else 0)


def _count_in(one: Any) -> int:
    return len(one) if isinstance(one, _HOLDERS) else 0


def _values_in(one: Any) -> Iterable[Any]:
    if isinstance(one, dict):
        return chain(one.keys(), one.values())
    if isinstance(one, Namespace):  # a namespace may contain another, or itself
        raise SecurityError("a namespace cannot be written")
    return one if isinstance(one, _HOLDERS) else ()
