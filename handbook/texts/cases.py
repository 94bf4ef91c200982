"""Chats about handbooks as token ids, with the right answers."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Tokenizer

from handbook.texts.handbooks import make_handbook, make_messages, make_questions

TOKENS_PER_FACT = 20
_BEGIN, _END = "<|begin|>", "<|end|>"


@dataclass(frozen=True, slots=True)
class HandbookCase:
    """A chat up to its answer, as token ids, and the right answer's ids with the end token."""

    handbook: int  # number of the handbook, which has its own namespace
    prompt: list[int]
    answer: list[int]


def draw_cases(
    tokenizer: Tokenizer, number: int, questions: int, tokens: int
) -> list[HandbookCase]:
    """Draw questions about held-out handbook number `number`, of about `tokens` tokens each."""
    handbook = make_handbook(number, max(1, tokens // TOKENS_PER_FACT))
    cases = []
    for question in make_questions(handbook, number, questions):
        messages = make_messages(handbook, (question,))
        opened = "".join(f"<|{one['role']}|>{one['content']}{_END}" for one in messages)
        prompt = tokenizer.encode(f"{_BEGIN}{opened}<|assistant|>").ids
        cases.append(HandbookCase(number, prompt, tokenizer.encode(question.answer + _END).ids))
    return cases
