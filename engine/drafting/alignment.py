"""The place in a text that a sequence repeats.

The place moves on while the sequence's new tokens equal the text. After a divergence, the longest
match in the text is the new place. If that match is short, the next equal token nearby is
preferred, since a word may have been replaced. A draft is at most as long as the match before it.
The method is SuffixDecoding (arXiv 2411.04975) with a factor of 1.
"""

from __future__ import annotations

from engine.drafting.draft import DraftSource
from engine.drafting.text_index import RUN, TextIndex
from prefix_cache.hashing import TokenIds

NEARBY = 24  # tokens after a divergence in which text and sequence are compared again


class Alignment:
    """A text, and the place in it that a sequence follows.

    Tokens are int32. Implements `Drafter`.
    """

    __slots__ = (
        "_is_own",
        "_known",
        "_lost",
        "_matched",
        "_place",
        "_prepared",
        "_text",
        "_tokens",
        "index",
        "source",
    )

    def __init__(self, source: DraftSource, index: TextIndex, tokens: TokenIds) -> None:
        """Start without a place.

        The text of `index` may be that of the sequence's own `tokens`. The caller indexes any other
        text before asking for drafts.
        """
        self.source, self.index = source, index
        self._is_own = index.text is tokens
        self._text = index.tokens
        self._tokens = index.tokens if self._is_own else tokens.data
        self._known = 0
        self._place: int | None = None
        self._matched = 0
        self._lost: tuple[int, int] | None = None  # places of the divergence in text and sequence
        # The next draft, and the number of known tokens that it follows; None: not prepared.
        self._prepared: tuple[int, tuple[int, ...]] | None = None

    def begin(self, place: int, known: int, matched: int) -> None:
        """Follow the text from `place` after `known` tokens, with `matched` equal tokens."""
        self._place, self._known, self._matched = place, known, matched

    def draft(self, known: int, most: int) -> tuple[int, ...]:
        """Return at most `most` tokens that probably follow the sequence's first `known` tokens."""
        if self._prepared is not None:
            (after, token_ids), self._prepared = self._prepared, None
            if after == known == self._known:
                return token_ids[:most]
        end = known if self._is_own else self.index.end
        if known > self._known:
            if self._place is not None:
                self._follow(self._place, known)
            self._known = known
        place = self._place
        if place is None:
            place = self._search(known, end)
        if place is None or place >= end:
            return ()
        size = most if most < self._matched else self._matched
        found = self._text[place : place + size].tolist()
        if place + size > end:
            del found[end - place :]
            if self._is_own:  # continue a text that repeats its own end
                found = (found * (size // len(found) + 1))[:size]
        return tuple(found)

    def prepare(self, known: int, count: int, most: int) -> list[int]:
        """Prepare the draft of at most `most` tokens after the text's next `count` tokens.

        Return the `count` tokens. If they follow the sequence's first `known` tokens, `advance`
        moves past them. Return [] if nothing is prepared. The text must not change in between.
        """
        place, end = self._place, known if self._is_own else self.index.end
        if place is None or known != self._known:
            return []
        after = place + count + min(most, self._matched + count)
        if after > end:
            return []
        text = self._text[place:after].tolist()
        self._prepared = known + count, tuple(text[count:])
        return text[:count]

    def advance(self, count: int) -> None:
        """Move past `count` tokens of the text that the sequence got, once a draft is prepared."""
        assert self._place is not None
        self._known += count
        self._place += count
        self._matched += count

    def catch_up(self, known: int) -> None:
        """If the text is the sequence itself, index its `known` tokens."""
        if self._is_own:
            self.index.extend(known)

    def _follow(self, place: int, known: int) -> None:
        before = self._known
        here = self._tokens[before:known].tolist()
        there = self._text[place : place + known - before].tolist()
        if here == there:
            self._place, self._matched = place + len(here), self._matched + len(here)
            return
        same = 0
        for token_id in there:
            if token_id != here[same]:
                break
            same += 1
        self._place, self._lost = None, (place + same, before + same)

    def _search(self, known: int, end: int) -> int | None:
        index = self.index
        if self._is_own and index.end < end - 1:
            index.extend(end - 1)
        found = index.find(self._tokens, known)
        if self._lost is not None and (found is None or found[1] == RUN):
            found = self._find_nearby(self._lost, known, end) or found
        if found is None:
            return None
        self._place, self._matched = found
        return self._place

    def _find_nearby(self, lost: tuple[int, int], known: int, end: int) -> tuple[int, int] | None:
        """Return the nearest place after a token equal to the last known token.

        Also return the length of the match, which is 1.
        """
        place, parted = lost
        if known - parted > NEARBY:
            self._lost = None
            return None
        nearby = self._text[place : min(place + NEARBY, end - 1)].tolist()
        last = self._tokens[known - 1]
        return (place + nearby.index(last) + 1, 1) if last in nearby else None
