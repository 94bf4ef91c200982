"""Drafts from a sequence's own prompt and answer.

Edits, quotes and tables repeat what stands before them. The text is the sequence's array itself, so
a draft cannot have a token of anyone else.
"""

from __future__ import annotations

from engine.drafting.alignment import Alignment
from engine.drafting.text_index import TextIndex
from engine.sequences.sequence import Sequence


def own_text(sequence: Sequence) -> Alignment:
    """Return a source that continues the longest, latest repetition within the sequence."""
    return Alignment("own", TextIndex(sequence.tokens), sequence.tokens)
