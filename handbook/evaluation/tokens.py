"""The shipped model's files, its tokens, and a chat as its template writes it.

Capitalised words and digits stand apart from the space before them, so that a name or a number is
the same tokens wherever it is written: what the model copies from the handbook into an answer.
Knows nothing of what is asked.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

SHIPPED = Path(__file__).parents[1] / "model"
"""The directory of the model that comes with Ratoon."""

BEGIN, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"
SYSTEM, USER, ASSISTANT = "<|system|>", "<|user|>", "<|assistant|>"
SPECIAL_TOKENS = (BEGIN, END, PAD, SYSTEM, USER, ASSISTANT)
TOKENS_PER_FACT = 20


def load_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer saved in `directory`."""
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


def frame(roles: list[str], segments: list[list[int]], vocabulary: dict[str, int]) -> list[int]:
    """The chat template over encoded messages."""
    openers = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT}
    tokens = [vocabulary[BEGIN]]
    for role, segment in zip(roles, segments, strict=True):
        tokens += [vocabulary[openers[role]], *segment, vocabulary[END]]
    return tokens
