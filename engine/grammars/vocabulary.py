"""A model's tokens, read by llguidance from the model's directory.

llguidance treats every added token in angle brackets as a special token, which no grammar's text
can contain. But Gemma's added tokens include HTML tags, which are plain text. Added tokens that are
plain text are therefore removed from the list that llguidance reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from llguidance import LLTokenizer

from engine.models.model_files import decode, read_file
from engine.models.token_marks import TokenMarks, is_in_angles, read_token_marks
from engine.system.freed_memory import return_freed_memory

TOKENIZER_FILE = "tokenizer.json"
WORD_BITS = 32


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The bytes of each token, and the tokens that end a sequence.

    Another process can read the same vocabulary from `model_dir`, if it knows `vocab_size` and
    `eos_token_ids`.
    """

    tokens: LLTokenizer
    model_dir: Path
    num_logits: int
    eos_token_ids: tuple[int, ...]

    @property
    def num_words(self) -> int:
        """The number of 32-bit words of a mask over the model's logits."""
        return -(-self.num_logits // WORD_BITS)


class _File(msgspec.Struct):
    added_tokens: msgspec.Raw = msgspec.Raw(b"[]")
    model: dict[str, Any] = {}


class NoVocabulary(ValueError):
    """An error: the model's directory has no usable vocabulary."""


def read_vocabulary(model_dir: Path, vocab_size: int, eos_token_ids: tuple[int, ...]) -> Vocabulary:
    """Read the vocabulary of a model with `vocab_size` logits.

    Raises NoVocabulary. Reading holds Python's lock for 1 to 2 s with 150,000 tokens, so the
    vocabulary is read before the engine serves. If there are more logits than tokens, the extra
    logits are never allowed. If there are fewer, masks end with the last logit.
    """
    path = model_dir / TOKENIZER_FILE
    if not path.is_file():
        raise NoVocabulary(f"there is no {TOKENIZER_FILE}")
    if not eos_token_ids:
        raise NoVocabulary("the model's config names no end of sequence")
    try:
        tokens = _read(path, vocab_size, list(eos_token_ids))
    except (OSError, ValueError) as error:
        raise NoVocabulary(f"{TOKENIZER_FILE}: {error}") from error
    return_freed_memory()  # for 200,000 tokens, 214 of 375 MiB
    return Vocabulary(tokens, model_dir, vocab_size, eos_token_ids)


def _read(path: Path, vocab_size: int, eos: list[int]) -> LLTokenizer:
    source = _with_text_as_text(path) or str(path)
    try:
        return LLTokenizer(source, n_vocab=vocab_size, eos_token=eos)
    except ValueError:  # the vocabulary size does not fit, or the file is damaged
        return LLTokenizer(source, eos_token=eos)


def _with_text_as_text(path: Path) -> str | None:
    """Return the tokenizer file without the added tokens that are text, or None if none are."""
    data = read_file(path)
    try:
        file = decode(data, _File)
        added = decode(bytes(file.added_tokens), list[dict[str, Any]])
    except msgspec.DecodeError:  # llguidance will report the error in the file
        return None
    marks, vocabulary = read_token_marks(path.parent), file.model.get("vocab")
    if not isinstance(vocabulary, dict):
        return None
    kept = [one for one in added if not _is_text(one, marks, vocabulary)]
    if len(kept) == len(added):
        return None
    return data.replace(bytes(file.added_tokens), msgspec.json.encode(kept), 1).decode()


def _is_text(token: dict[str, Any], marks: TokenMarks, vocabulary: dict[str, int]) -> bool:
    content, is_special = token.get("content", ""), token.get("special") is True
    if not is_in_angles(content) or vocabulary.get(content) != token.get("id"):
        return False
    return not marks.are_of(content, is_special=is_special)
