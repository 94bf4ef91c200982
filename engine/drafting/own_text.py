"""The drafts from a sequence's own prompt and answer.

Edits, quotes and tables repeat earlier text. Drafts are read from the sequence's own token array,
so a draft cannot contain tokens of another request.
"""

from __future__ import annotations

from engine.drafting.alignment import Alignment
from engine.drafting.text_index import TextIndex
from engine.sequences.sequence import Sequence


def own_text(sequence: Sequence) -> Alignment:
    """Make a source of drafts: the tokens that followed earlier occurrences of the last tokens."""
    index = TextIndex(sequence.tokens)
    index.extend(sequence.num_tokens - 1)
    return Alignment("own", index, sequence.tokens)
