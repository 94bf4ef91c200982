"""A rendered chat in which some turns are the tokens that the model generated.

A text can be spelled in tokens in several ways, and each template writes arguments of calls in a
different way. The rendered text of an answer seldom has the tokens that are in the cache. So this
module replaces the rendered text of an answer by the generated tokens.

Elsewhere: which turns may be put back (`verbatim_turns/verbatim.py`).
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gateway.prompts.tokens.control_tokens import Rendered
from gateway.prompts.tokens.tokenizer import TokenIds

# Bytes that never occur in UTF-8. Hashed before control tokens, texts and token ids, they tell
# these apart.
_CONTROL, _TEXT, _IDS = b"\xfd", b"\xfe", b"\xff"


class Place(NamedTuple):
    """A place in a rendered chat: the even index of a text piece, and an offset in characters."""

    piece: int
    chars: int


START = Place(0, 0)


@dataclass(frozen=True, slots=True)
class Splice:
    """The `token_ids` that replace the rendered text from `begin` to `end`."""

    begin: Place
    end: Place
    token_ids: TokenIds


@dataclass(frozen=True, slots=True)
class SplicedChat:
    """A rendered chat and its splices, in order."""

    rendered: Rendered
    splices: tuple[Splice, ...] = ()
    # key of the last remembered turn, if one splice replaces everything up to this turn's end
    parent: bytes | None = None

    def parts(self) -> Iterator[Rendered | TokenIds]:
        """Yield the chat's parts in order: texts to tokenise, and tokens."""
        at = START
        for splice in self.splices:
            yield between(self.rendered, at, splice.begin)
            yield splice.token_ids
            at = splice.end
        yield between(self.rendered, at, end_of(self.rendered))

    def digest(self, end: Place) -> bytes:
        """Hash the chat before `end`, which is after the last splice."""
        hashed = ChatHash(self.rendered)
        for splice in self.splices:
            hashed.read_to(splice.begin)
            hashed.splice(splice)
        return hashed.read_to(end)


class ChatHash:
    """A hash of a rendered chat up to a place, in which splices count as their tokens.

    If a control token or a splice comes next, two chats with the same hash have the same tokens up
    to that place.
    """

    def __init__(self, rendered: Rendered) -> None:
        self._rendered = rendered
        self._hash = hashlib.blake2b(digest_size=32)
        self._at = START

    def read_to(self, end: Place) -> bytes:
        """Hash the chat up to `end`, which is not before the end of the hashed part."""
        pieces = between(self._rendered, self._at, end).pieces
        self._hash.update(pieces[0].encode())
        for number, piece in enumerate(pieces[1:], start=1):
            self._hash.update((_CONTROL if number % 2 else _TEXT) + piece.encode())
        self._at = end
        return self._hash.digest()

    def splice(self, splice: Splice) -> None:
        """Hash the tokens of `splice`, once the chat is hashed up to the splice."""
        ids = splice.token_ids.astype("<i4").tobytes()
        self._hash.update(_IDS + len(ids).to_bytes(8, "little") + ids)
        self._at = splice.end

    def is_before(self, place: Place) -> bool:
        """Return whether `place` is in the chat and at or after the end of the hashed part."""
        pieces = self._rendered.pieces
        is_there = place.piece < len(pieces) and place.chars <= len(pieces[place.piece])
        return is_there and place >= self._at


def between(rendered: Rendered, begin: Place, end: Place) -> Rendered:
    """Return the rendered pieces from `begin` to `end`."""
    if begin.piece == end.piece:
        return Rendered((rendered.pieces[begin.piece][begin.chars : end.chars],))
    first = rendered.pieces[begin.piece][begin.chars :]
    last = rendered.pieces[end.piece][: end.chars]
    return Rendered((first, *rendered.pieces[begin.piece + 1 : end.piece], last))


def end_of(rendered: Rendered) -> Place:
    """Return the place at the end of a rendered chat."""
    last = len(rendered.pieces) - 1
    return Place(last, len(rendered.pieces[last]))


def before_control(rendered: Rendered, begin: Place, tokens: frozenset[str]) -> Place | None:
    """Find the first of these control tokens from `begin` on, or return None."""
    for number in range(begin.piece + 1, len(rendered.pieces), 2):
        if rendered.pieces[number] in tokens:
            return Place(number - 1, len(rendered.pieces[number - 1]))
    return None


def before_last(rendered: Rendered, length: int) -> Place:
    """Find the place before the last `length` characters.

    The result is the chat's end if that place is within a control token.
    """
    number, left = len(rendered.pieces) - 1, length
    while number > 0 and left > len(rendered.pieces[number]):
        left -= len(rendered.pieces[number])
        number -= 1
    rest = len(rendered.pieces[number]) - left
    if number % 2 and rest == 0:
        return Place(number - 1, len(rendered.pieces[number - 1]))
    return end_of(rendered) if number % 2 or rest < 0 else Place(number, rest)


def is_before_control(rendered: Rendered, place: Place) -> bool:
    """Return whether a control token or the chat's end follows a place."""
    return place.chars == len(rendered.pieces[place.piece])
