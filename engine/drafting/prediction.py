"""The drafts from the expected answer that a request states (OpenAI's `prediction`).

The first draft is the prediction's beginning. After a token that differs, the answer's last tokens
are searched for in the prediction.
"""

from __future__ import annotations

from engine.drafting.alignment import Alignment
from engine.drafting.text_index import LONGEST, TextIndex
from engine.sequences.sequence import Sequence


def predicted_text(sequence: Sequence) -> Alignment | None:
    """Make a source that drafts from the request's `prediction`, or return None without one."""
    prediction = sequence.prediction
    if prediction is None or not len(prediction):
        return None
    index = TextIndex(prediction)
    index.extend(len(prediction))
    alignment = Alignment("prediction", index, sequence.tokens)
    alignment.begin(0, sequence.prompt_len, LONGEST)
    return alignment
