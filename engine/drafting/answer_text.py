"""The answers of one namespace as an indexed text. Each answer stays while its KV is in the tree.

An answer is copied when it has ended, and erased when the tree forgets its last block. The text
holds at most `MOST_TOKENS` tokens, and the oldest answers are dropped first. Text and index take at
most 1.3 MiB.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.drafting.text_index import TextIndex
from prefix_cache.hashing import TokenIds
from prefix_cache.tree.node import Node

MOST_TOKENS = 1 << 17
LEAST_TOKENS = 1 << 5  # small, since each salt has a text, and each request may have a new salt
ERASED = -1  # replaces an erased token, and separates answers


@dataclass(frozen=True, slots=True)
class _Answer:
    """The location of one answer in the text.

    The answer's last block is in `node`, and its index in the prompt is `end_block` - 1.
    """

    start: int
    end: int
    node: Node
    end_block: int

    @property
    def is_cached(self) -> bool:
        return self.node.attached and self.end_block <= self.node.end


class AnswerText:
    """A text of answers, with `ERASED` after each answer. Used by one thread only."""

    def __init__(self) -> None:
        self._answers: dict[Node, list[_Answer]] = {}
        self._begin(LEAST_TOKENS)

    @property
    def is_empty(self) -> bool:
        """True if the text has no answer."""
        return not self._answers

    def add(self, token_ids: TokenIds, node: Node, end_block: int) -> None:
        """Add an answer (int32). Its last block is block `end_block` - 1, in `node`.

        An answer that the text already has is not added.
        """
        if any(one.end_block == end_block for one in self._answers.get(node, ())):
            return
        token_ids = token_ids[1 - MOST_TOKENS // 2 :]
        if self._end + len(token_ids) >= len(self.index.text):
            self._make_room(len(token_ids) + 1)
        self._put(token_ids, node, end_block)

    def forget(self, node: Node) -> None:
        """Erase the answers whose last block was in `node` but is no longer in the tree."""
        answers = self._answers.pop(node, [])
        for answer in answers:
            if not answer.is_cached:
                self.index.text[answer.start : answer.end] = ERASED
        if kept := [answer for answer in answers if answer.is_cached]:
            self._answers[node] = kept

    def _begin(self, size: int) -> None:
        self.index = TextIndex(np.full(size, ERASED, np.int32))
        self._end = 0

    def _put(self, token_ids: TokenIds, node: Node, end_block: int) -> None:
        start, end = self._end, self._end + len(token_ids)
        self.index.text[start:end] = token_ids
        self.index.extend(end)
        self._end = end + 1
        self._answers.setdefault(node, []).append(_Answer(start, end, node, end_block))

    def _make_room(self, wanted: int) -> None:
        """Copy the latest answers to a new text, with space for `wanted` tokens."""
        text, kept, size = self.index.text, list[_Answer](), wanted
        answers = [answer for some in self._answers.values() for answer in some]
        for answer in sorted(answers, key=lambda one: one.start, reverse=True):
            size += answer.end + 1 - answer.start
            if 2 * size > MOST_TOKENS:
                size -= answer.end + 1 - answer.start
                break
            kept.append(answer)
        self._answers = {}
        self._begin(max(2 * size, LEAST_TOKENS))
        for answer in reversed(kept):
            self._put(text[answer.start : answer.end], answer.node, answer.end_block)
