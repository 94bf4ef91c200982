"""JSON of answers that are too large to be made at once, in fragments.

A `LazyList` stands in a Struct where a list does. Its items are made, encoded and forgotten a few
at a time, when all that comes before them has been spelled.

Knows: JSON. Does not know: what is spelled, or which thread spells it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar, overload

import msgspec

from gateway.processes.fair_executor import Steps

PIECE_BYTES = 128 << 10
_STEP_BYTES = 16 << 10  # of log-probabilities a millisecond

T = TypeVar("T")
Fragments = Iterator[bytes]  # of one JSON text; each takes a millisecond to make at most


class LazyList(Sequence[T]):
    """A list whose items are made when they are looked at, each time anew.

    Spelled, each is looked at once, in their order.
    """

    def __init__(self, length: int, item: Callable[[int], T], at_once: int = 16) -> None:
        """Make `at_once` items together, which take about a millisecond."""
        self.at_once = at_once
        self._length = length
        self._item = item

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, at: int) -> T: ...

    @overload
    def __getitem__(self, at: slice) -> list[T]: ...

    def __getitem__(self, at: int | slice) -> T | list[T]:
        if isinstance(at, slice):
            return [self._item(one) for one in range(*at.indices(self._length))]
        return self._item(range(self._length)[at])


class Listed(Protocol):
    """The maker of a list of so many items: `LazyList`, or `listed_now`."""

    def __call__(self, length: int, item: Callable[[int], T], /) -> Sequence[T]:
        """Make the list."""
        ...


def listed_now(length: int, item: Callable[[int], T]) -> list[T]:
    """Make all of a list."""
    return [item(at) for at in range(length)]


def fragments(value: object) -> Fragments:
    """Write the JSON of `value`, which may have lazy lists at any depth."""
    mark = b""
    lists: list[LazyList[Any]] = []

    def put_off(found: object) -> msgspec.Raw:
        nonlocal mark
        if not isinstance(found, LazyList):
            raise TypeError(f"{type(found).__name__} cannot be spelled as JSON")
        # JSON has no such byte, but what is passed on as it was sent may have it.
        mark = mark or b"\0" + secrets.token_bytes(16)
        lists.append(found)
        return msgspec.Raw(mark)

    spelled = msgspec.json.encode(value, enc_hook=put_off)
    if not lists:
        yield spelled
        return
    first, *rest = spelled.split(mark)
    yield first
    for some, after in zip(lists, rest, strict=True):
        yield from _items(some)
        yield after


def piece(spelled: Fragments) -> Steps[bytes]:
    """Join some of the fragments that are left; return b"" once there are none."""
    taken, size, step = [], 0, 0
    for fragment in spelled:
        taken.append(fragment)
        size += len(fragment)
        if size >= PIECE_BYTES:
            break
        if size >= step + _STEP_BYTES:
            step = size
            yield
    return b"".join(taken)


def _items(found: LazyList[Any]) -> Fragments:
    yield b"["
    for at in range(0, len(found), found.at_once):
        if at:
            yield b","
        yield from _without_brackets(fragments(found[at : at + found.at_once]))
    yield b"]"


def _without_brackets(spelled: Fragments) -> Fragments:
    """Yield the items of a list, which is not empty, without what stands around them."""
    last = next(spelled)[1:]
    for fragment in spelled:
        yield last
        last = fragment
    yield last[:-1]
