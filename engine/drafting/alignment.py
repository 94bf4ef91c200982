"""The tracking of a text that a sequence repeats, by the place the sequence has reached in it.

The place moves on while the sequence's new tokens equal the text. After a difference, the longest
match in the text is the new place.
"""

from __future__ import annotations

from engine.drafting.draft import DraftSource
from engine.drafting.text_index import TextIndex
from prefix_cache.hashing import TokenIds


class Alignment:
    """A text, and the place in it that a sequence follows.

    Tokens are int32. Implements `Drafter`.
    """

    __slots__ = ("_is_own", "_place", "_text", "_tokens", "index", "known", "matched", "source")

    def __init__(self, source: DraftSource, index: TextIndex, tokens: TokenIds) -> None:
        """Start without a place in the text.

        The text of `index` may be the sequence's own `tokens`. The caller must index any other text
        before it asks for drafts.
        """
        self.source, self.index = source, index
        self._is_own = index.text is tokens
        self._text = index.tokens
        self._tokens = index.tokens if self._is_own else tokens.data
        self.known = 0
        self._place: int | None = None
        self.matched = 0

    def begin(self, place: int, known: int, matched: int) -> None:
        """Follow the text from `place` on, when the sequence has `known` tokens.

        The `matched` tokens before the place equal the sequence's last tokens.
        """
        self._place, self.known, self.matched = place, known, matched

    def draft(self, known: int, most: int) -> tuple[int, ...]:
        """Return at most `most` tokens that probably follow the sequence's first `known` tokens."""
        if not self.look(known, most):
            return ()
        place = self._place
        assert place is not None
        end = known if self._is_own else self.index.end
        if place + most <= end:
            return tuple(self._text[place : place + most].tolist())
        found = self._text[place:end].tolist()
        if self._is_own:  # assume that the text goes on repeating its end
            found = (found * (most // len(found) + 1))[:most]
        return tuple(found)

    def look(self, known: int, most: int) -> int:
        """Return how many tokens can be drafted after the sequence's first `known` tokens."""
        before = self.known
        if known != before and (self._place is None or not self.follow(before, known)):
            self.known, self._place = known, None
        if self._place is None:
            if self._is_own:  # indexing the last place would match the last tokens with themselves
                self.index.extend(min(before, known - 1))
            found = self.index.find(self._tokens, known)
            if found is None:
                return 0
            self._place, self.matched = found
        return self.left(most)

    def follow(self, before: int, known: int) -> bool:
        """Move the place past tokens `before` to `known`. Return False if the text differs."""
        place = self._place
        assert place is not None
        after = place + known - before
        if self._text[place:after] != self._tokens[before:known]:
            return False
        self.known, self._place = known, after
        self.matched += known - before
        return True

    def left(self, most: int) -> int:
        """Return the number of tokens that the text has after the place, at most `most`."""
        if self._is_own:
            return most
        assert self._place is not None
        left = self.index.end - self._place
        return left if left < most else most

    def ahead(self, count: int) -> list[int]:
        """Return at most `count` tokens of the text after the place."""
        assert self._place is not None
        return self._text[self._place : self._place + count].tolist()

    def catch_up(self, known: int) -> None:
        """If the text is the sequence itself, index its `known` tokens."""
        if self._is_own:
            self.index.extend(known)
