"""Answers that are single tokens of the model, and their relative probabilities."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gateway.errors import BadRequest
from gateway.prompts.tokens.tokenizer import Tokenizer


def single_token(tokenizer: Tokenizer, text: str) -> int | None:
    """Return the only token of `text`, or None if `text` has several tokens."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    return int(ids[0]) if len(ids) == 1 else None


def tokens_of(tokenizer: Tokenizer, answers: Sequence[str]) -> list[int]:
    """Return one token for each of `answers`; raise BadRequest if an answer has several tokens."""
    found = [single_token(tokenizer, answer) for answer in answers]
    ids = [token_id for token_id in found if token_id is not None]
    if len(ids) < len(answers):
        raise BadRequest(
            f"the model's tokenizer has no single tokens for {' and '.join(answers)}",
            code="model_not_supported",
            param="model",
        )
    return ids


def probabilities(logits: bytes) -> npt.NDArray[np.float64]:
    """Return the probabilities (C,) of the candidates: the softmax of float32 `logits` (C,)."""
    values = np.frombuffer(logits, "<f4").astype(np.float64)
    weights = np.exp(values - values.max())
    return np.asarray(weights / weights.sum())
