"""Drafts from a sequence's own prompt and answer.

Edits, quotes and tables repeat earlier text. The text is the sequence's array itself, so a draft
cannot contain tokens of another request.
"""

from __future__ import annotations

from engine.drafting.alignment import Alignment
from engine.drafting.text_index import TextIndex
from engine.sequences.sequence import Sequence


def own_text(sequence: Sequence) -> Alignment:
    """Return a source that continues the sequence's longest (then latest) repetition of itself."""
    return Alignment("own", TextIndex(sequence.tokens), sequence.tokens)
