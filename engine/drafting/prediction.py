"""Drafts from the answer that a request expects (OpenAI's `prediction`).

The answer is expected to begin like the prediction; after a difference, the place in the prediction
is searched by the answer's last tokens.
"""

from __future__ import annotations

from engine.drafting.alignment import Alignment
from engine.drafting.text_index import LONGEST, TextIndex
from engine.sequences.sequence import Sequence


def predicted_text(sequence: Sequence) -> Alignment | None:
    """Return a source that follows the request's `prediction`; None if it has no prediction."""
    prediction = sequence.prediction
    if prediction is None or not len(prediction):
        return None
    index = TextIndex(prediction)
    index.extend(len(prediction))
    alignment = Alignment("prediction", index, sequence.tokens)
    alignment.begin(0, sequence.prompt_len, LONGEST)
    return alignment
