"""The encoding of large answers as JSON, one fragment at a time.

A `LazyList` takes the place of a list in a Struct. Its items are made, encoded and dropped a few at
a time, after all JSON before them has been consumed.
"""

import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar, overload

import msgspec

from gateway.processes.fair_executor import Steps

PIECE_BYTES = 128 << 10
_STEP_BYTES = 16 << 10  # bytes of log-probabilities' JSON that are encoded in a millisecond

T = TypeVar("T")
Fragments = Iterator[bytes]  # parts of one JSON text; each takes at most a millisecond to encode


class LazyList(Sequence[T]):
    """A list that makes its items anew on each access.

    The encoder accesses each item once, in order.
    """

    def __init__(self, length: int, item: Callable[[int], T], at_once: int = 16) -> None:
        """Make a list of `length` items, of which `at_once` are encoded together."""
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
    """A function that makes a list from its length and items: `LazyList`, or `listed_now`."""

    def __call__(self, length: int, item: Callable[[int], T], /) -> Sequence[T]: ...


def listed_now(length: int, item: Callable[[int], T]) -> list[T]:
    """Make all items of a list at once."""
    return [item(at) for at in range(length)]


def fragments(value: object) -> Fragments:
    """Encode `value`, with lazy lists at any depth, as fragments of JSON."""
    mark = b""
    lists: list[LazyList[Any]] = []

    def put_off(found: object) -> msgspec.Raw:
        nonlocal mark
        if not isinstance(found, LazyList):
            raise TypeError(f"{type(found).__name__} cannot be spelled as JSON")
        # The encoder writes no byte 0, but a client's `Raw` JSON may have one. The random bytes
        # make the mark unique.
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
    """Join the next fragments up to `PIECE_BYTES` bytes; return b"" if no fragment is left."""
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
    last = next(spelled)[1:]
    for fragment in spelled:
        yield last
        last = fragment
    yield last[:-1]
