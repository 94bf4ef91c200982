"""Drafts from the answer that a request expects (OpenAI's `prediction`).

The answer is taken to begin as the prediction does; where it departs from it, the prediction is
looked for again by its last tokens.
"""

from __future__ import annotations

from engine.drafting.alignment import Alignment
from engine.drafting.draft import Draft
from engine.drafting.text_index import LONGEST
from engine.sequences.sequence import Sequence


class PredictedText:
    """Drafter that follows a request's `prediction`."""

    def __init__(self) -> None:
        self._alignments: dict[Sequence, Alignment] = {}

    def propose(self, sequence: Sequence, most: int) -> Draft | None:
        prediction = sequence.prediction
        if prediction is None or not len(prediction):
            return None
        alignment = self._alignments.get(sequence)
        if alignment is None:
            alignment = self._alignments[sequence] = Alignment(prediction, sequence.tokens)
            alignment.begin(0, sequence.prompt_len, LONGEST)
        token_ids = alignment.draft(sequence.num_tokens, most)
        return Draft(token_ids, "prediction") if token_ids else None

    def ended(self, sequence: Sequence) -> None:
        self._alignments.pop(sequence, None)
