"""The drafts from earlier answers to other prompts in the same namespace.

A request reads only answers of its own namespace. An answer is kept until the tree forgets the
answer's last KV block. A request that does not use the cache leaves no answer and gets no drafts
from answers.
"""

from __future__ import annotations

from typing import ClassVar

from engine.drafting.alignment import Alignment
from engine.drafting.answer_text import ERASED, AnswerText
from engine.drafting.draft import DraftSource
from engine.sequences.sequence import Sequence
from prefix_cache.namespace import Namespace
from prefix_cache.tree.node import Node
from prefix_cache.tree.tree import RadixTree


class EarlierAnswers:
    """The answers of each namespace, while the tree has their blocks. Used by one thread only."""

    def __init__(self, tree: RadixTree) -> None:
        self._texts: dict[Namespace, AnswerText] = {}
        tree.when_shorter = self._forget

    def begin(self, sequence: Sequence) -> FollowedAnswer | None:
        """Make a sequence's drafter, or return None if the sequence may not use the cache."""
        is_cached = sequence.lease is not None and sequence.use_cache
        return FollowedAnswer(self, sequence) if is_cached else None

    def keep(self, sequence: Sequence) -> None:
        """Store a sequence's answer, for as long as the tree has the answer's last block."""
        lease, answer = sequence.lease, sequence.output_ids
        if lease is None or not sequence.use_cache or not len(answer):
            return
        if lease.num_shared and lease.node.attached:
            namespace = self.scope(sequence.path.last)
            self._texts.setdefault(namespace, AnswerText()).add(
                answer, lease.node, lease.num_shared
            )

    def text_in(self, scope: Namespace) -> AnswerText | None:
        """Return the text of the answers in a scope, or None without answers."""
        return self._texts.get(scope)

    def scope(self, namespace: Namespace) -> Namespace:
        """Return `namespace` itself, because requests read only answers of their own namespace."""
        return namespace

    def _forget(self, node: Node) -> None:
        namespace = self.scope(node.namespace)
        text = self._texts.get(namespace)
        if text is not None:
            text.forget(node)
            if text.is_empty:
                del self._texts[namespace]


class FollowedAnswer:
    """The place in a namespace's answers that a sequence follows. Implements `Drafter`."""

    __slots__ = ("_alignment", "_answers", "_scope", "_sequence")
    source: ClassVar[DraftSource] = "answers"

    def __init__(self, answers: EarlierAnswers, sequence: Sequence) -> None:
        self._answers, self._sequence = answers, sequence
        self._scope = answers.scope(sequence.path.last)
        self._alignment: Alignment | None = None

    @property
    def matched(self) -> int:
        """The number of last known tokens that the earlier answer also has."""
        return self._alignment.matched if self._alignment is not None else 0

    def draft(self, known: int, most: int) -> tuple[int, ...]:
        """Return the tokens that followed the sequence's last tokens in an earlier answer."""
        text, alignment = self._answers.text_in(self._scope), self._alignment
        if text is None or not self._sequence.use_cache:
            return ()
        if alignment is None or alignment.index is not text.index:
            alignment = Alignment(self.source, text.index, self._sequence.tokens)
            self._alignment = alignment
        token_ids = alignment.draft(known, most)
        return token_ids[: token_ids.index(ERASED)] if ERASED in token_ids else token_ids
