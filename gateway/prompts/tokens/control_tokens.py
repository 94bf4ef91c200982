"""The tokens that give a prompt its structure, such as `<|im_start|>`, and their places in texts.

A tokenizer finds its *added tokens* in a text before anything else. Added tokens that separate
turns, or enclose tools and reasoning, are control tokens. The model's files name them
(`engine/models/token_marks.py`). Any other added token is plain text that the vocabulary lacked.

Control tokens that are pairs and not special, such as `<think>` and `</think>`, are *markup*. A
model's answer shows markup, so a message of the assistant may contain it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.models.token_marks import NO_MARKS, TokenMarks


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt's text in pieces. Every second piece is a control token of the template.

    The other pieces are text, even if they look like control tokens.
    """

    pieces: tuple[str, ...]
    prefill: str = ""

    @property
    def text(self) -> str:
        """The whole text, including control tokens."""
        return "".join(self.pieces)

    def followed(self, more: Rendered) -> Rendered:
        """Append `more`. The two texts that meet are joined, and never count as a control token."""
        meeting = self.pieces[-1] + more.pieces[0]
        return Rendered((*self.pieces[:-1], meeting, *more.pieces[1:]))

    def __len__(self) -> int:
        return sum(map(len, self.pieces))


class ControlTokens:
    """The control tokens of one tokenizer. Immutable and thread-safe."""

    def __init__(
        self, added: Mapping[str, bool] | None = None, marks: TokenMarks = NO_MARKS
    ) -> None:
        """Find the control tokens. `added` has the `special` flag of each added token's text."""
        known = added or {}
        self.tokens = frozenset(
            text for text, special in known.items() if marks.are_of(text, is_special=special)
        )
        self.markup = frozenset(text for text in self.tokens if _is_markup(text, known))
        self.pattern = pattern_of(self.tokens)  # matches any control token, the longest that fits
        self._around = re.compile(f"({self.pattern.pattern})")

    def split(self, text: str, mark: str = "") -> Rendered:
        """Split `text` at control tokens, and remove the break character `mark` from the pieces."""
        return Rendered(tuple(piece.replace(mark, "") for piece in self._around.split(text)))


def _is_markup(text: str, added: Mapping[str, bool]) -> bool:
    opening = text.replace("</", "<", 1)
    pair = (opening, opening.replace("<", "</", 1))
    return text.startswith("<") and all(not added.get(token, True) for token in pair)


def pattern_of(tokens: Iterable[str]) -> re.Pattern[str]:
    """Make a pattern that matches any of `tokens`, the longest that fits.

    The pattern is a trie, so a search takes as long for a thousand tokens as for one token.
    """
    trie: dict[str, Any] = {}
    for token in tokens:
        node = trie
        for char in token:
            node = node.setdefault(char, {})
        node[""] = {}
    # No text matches this. A search for the rare first character skips most of a text at once.
    never = "\U0010ffff(?!)"
    return re.compile(_spelled(trie) if trie else never)


def _spelled(node: dict[str, Any]) -> str:
    ends = "" in node
    ways = [re.escape(char) + _spelled(child) for char, child in sorted(node.items()) if char]
    if len(ways) == 1 and not ends:
        return ways[0]
    return f"(?:{'|'.join(ways)}){'?' if ends else ''}" if ways else ""
