"""The drafts from the answer that a request expects (OpenAI's `prediction`).

The first draft is the prediction's beginning. After a difference, the answer's last tokens are
searched in the prediction.
"""

from __future__ import annotations

from engine.drafting.alignment import Alignment
from engine.drafting.text_index import LONGEST, TextIndex
from engine.sequences.sequence import Sequence


def predicted_text(sequence: Sequence) -> Alignment | None:
    """Return a source that follows the request's `prediction`, or None without a prediction."""
    prediction = sequence.prediction
    if prediction is None or not len(prediction):
        return None
    index = TextIndex(prediction)
    index.extend(len(prediction))
    alignment = Alignment("prediction", index, sequence.tokens)
    alignment.begin(0, sequence.prompt_len, LONGEST)
    return alignment
