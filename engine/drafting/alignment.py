"""The tracking of a text that a sequence repeats, and of the place it has reached in the text.

The place moves on while the sequence's new tokens equal the text. After a difference, the place is
the end of the longest match in the text. Of equally long matches, one shortly after the end of the
last long match is preferred, because there the text goes on after an edit.
"""

from __future__ import annotations

from engine.drafting.draft import DraftSource
from engine.drafting.text_index import TextIndex
from prefix_cache.hashing import TokenIds

LONG = 12  # number of equal tokens that make a match long


class Alignment:
    """A text, and the place in it that a sequence follows.

    Tokens are int32. Implements `Drafter`.
    """

    __slots__ = (
        "_end",
        "_is_own",
        "_place",
        "_text",
        "_tokens",
        "index",
        "known",
        "matched",
        "source",
    )

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
        self._end: int | None = None  # end of the last long match
        self.matched = 0

    def begin(self, place: int, known: int, matched: int) -> None:
        """Follow the text from `place` on, when the sequence has `known` tokens.

        The `matched` tokens before the place equal the sequence's last tokens.
        """
        self._place, self.known, self.matched = place, known, matched

    def draft(self, known: int, most: int) -> tuple[int, ...]:
        """Return at most `most` tokens that probably follow the sequence's first `known` tokens."""
        if self._is_own:  # indexing the last place would match the last tokens with themselves
            self.index.extend(min(self.known, known - 1))
        if known != self.known:
            self.follow(known)
        return self.ahead(most) if self.find(most) else ()

    def follow(self, known: int) -> int:
        """Move the place past the new tokens up to `known`.

        Return how many of them are right. After a wrong token there is no place.
        """
        place, before, self.known = self._place, self.known, known
        if place is None:
            return 0
        text, tokens, count = self._text, self._tokens, known - before
        right, most = 0, min(count, len(text) - place)
        while right < most and text[place + right] == tokens[before + right]:
            right += 1
        if right == count:
            self._place = place + count
            self.matched += count
        else:
            if self.matched + right >= LONG:
                self._end = place + right
            self._place = None
        return right

    def find(self, most: int) -> int:
        """Find a place after the known tokens, unless there is one already.

        Return how many tokens can be drafted, at most `most`.
        """
        if self._place is None:
            found = self.index.find(self._tokens, self.known)
            if found is None:
                return 0
            self._place, self.matched = found
            if self._end is not None and self.matched < LONG:
                near = self.index.find_near(self._tokens, self.known, self._end, self.matched)
                self._place = near or self._place
        if self._is_own:
            return most
        left = self.index.end - self._place
        return left if left < most else most

    def ahead(self, most: int) -> tuple[int, ...]:
        """Return at most `most` tokens of the text after the place."""
        place = self._place
        assert place is not None
        end = self.known if self._is_own else self.index.end
        if place + most <= end:
            return tuple(self._text[place : place + most].tolist())
        found = self._text[place:end].tolist()
        if self._is_own:  # assume that the text repeats its end
            found = (found * (most // len(found) + 1))[:most]
        return tuple(found)
