"""Drafts from a sequence's own prompt and answer.

Edits, quotes and tables repeat what stands before them. The text is the sequence's array itself, so
a draft cannot have a token of anyone else.
"""

from __future__ import annotations

from engine.drafting.alignment import Alignment
from engine.drafting.draft import Draft
from engine.sequences.sequence import Sequence


class OwnText:
    """Drafter that continues the latest, longest repetition within a sequence's own tokens."""

    def __init__(self) -> None:
        self._alignments: dict[Sequence, Alignment] = {}

    def propose(self, sequence: Sequence, most: int) -> Draft | None:
        alignment = self._alignments.get(sequence)
        if alignment is None:
            tokens = sequence.tokens
            alignment = self._alignments[sequence] = Alignment(tokens, tokens)
        token_ids = alignment.draft(sequence.num_tokens, most)
        return Draft(token_ids, "own") if token_ids else None

    def ended(self, sequence: Sequence) -> None:
        self._alignments.pop(sequence, None)
