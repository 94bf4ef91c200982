"""The tokens of a model, as the library for grammars reads them from its directory.

Knows: `tokenizer.json`. Does not know: how texts are tokenised (the gateway does that).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from llguidance import LLTokenizer

TOKENIZER_FILE = "tokenizer.json"
WORD_BITS = 32  # of a mask


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The bytes of each token, and which of them end a sequence."""

    tokens: LLTokenizer
    num_words: int  # of a mask, as the model has logits


class NoVocabulary(ValueError):
    """The model's directory does not say what its tokens are."""


def read_vocabulary(model_dir: Path, vocab_size: int, eos_token_ids: tuple[int, ...]) -> Vocabulary:
    """The vocabulary of a model with `vocab_size` logits; raises NoVocabulary.

    Holds the interpreter for 1 to 2 s with 150,000 tokens, so it is read before the engine serves.
    The model may have more logits than there are tokens; those are never allowed. Where it has
    fewer, masks end with them.
    """
    path = model_dir / TOKENIZER_FILE
    if not path.is_file():
        raise NoVocabulary(f"there is no {TOKENIZER_FILE}")
    if not eos_token_ids:
        raise NoVocabulary("the model's config names no end of sequence")
    try:
        tokens = _read(path, vocab_size, list(eos_token_ids))
    except ValueError as error:
        raise NoVocabulary(f"{TOKENIZER_FILE}: {error}") from error
    return Vocabulary(tokens, -(-vocab_size // WORD_BITS))


def _read(path: Path, vocab_size: int, eos: list[int]) -> LLTokenizer:
    try:
        return LLTokenizer(str(path), n_vocab=vocab_size, eos_token=eos)
    except ValueError:  # of logits there are fewer, or the file is damaged
        return LLTokenizer(str(path), eos_token=eos)
