"""Training rows: a handbook and a long dialogue about it, as exactly so many tokens.

Many questions on one handbook make the supervision dense. Knows tokens and which of them are
answers; nothing of models, processes or time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from handbook.facts import Question
from handbook.names import Source
from handbook.text import Handbook, write_handbook, write_question, write_small_talk
from handbook.tokenizer import ASSISTANT, BEGIN, END, SYSTEM, USER

TOKENS_PER_FACT = 20
TOKENS_PER_TURN = 18


@dataclass(frozen=True)
class Rows:
    """Token ids (rows, length + 1), uint16, and which of them a right answer must contain, bool."""

    ids: NDArray[np.uint16]
    answers: NDArray[np.bool_]


@dataclass(frozen=True)
class Marks:
    """The ids of the special tokens that a chat is framed with."""

    begin: int
    end: int
    system: int
    user: int
    assistant: int


def marks_of(tokenizer: Tokenizer) -> Marks:
    """The special tokens' ids in this tokenizer."""
    vocabulary = tokenizer.get_vocab()
    return Marks(*(vocabulary[token] for token in (BEGIN, END, SYSTEM, USER, ASSISTANT)))


def write_rows(source: Source, tokenizer: Tokenizer, count: int, length: int) -> Rows:
    """`count` rows of `length` + 1 tokens each, cut off where the dialogue overruns."""
    chats = [_write_chat(source, length) for _ in range(count)]
    encoded = tokenizer.encode_batch_fast([part for chat in chats for _, part in chat])
    marks, position = marks_of(tokenizer), 0
    ids = np.full((count, length + 1), marks.end, dtype=np.uint16)
    answers = np.zeros((count, length + 1), dtype=np.bool_)
    for row, chat in enumerate(chats):
        segments = [encoding.ids for encoding in encoded[position : position + len(chat)]]
        position += len(chat)
        tokens, is_answer = frame([role for role, _ in chat], segments, marks)
        filled = min(len(tokens), length + 1)
        ids[row, :filled] = tokens[:filled]
        answers[row, :filled] = is_answer[:filled]
    return Rows(ids, answers)


def frame(
    roles: list[str], segments: list[list[int]], marks: Marks
) -> tuple[list[int], list[bool]]:
    """The chat template over encoded messages, and which tokens the model must say itself."""
    openers = {"system": marks.system, "user": marks.user, "assistant": marks.assistant}
    tokens, is_answer = [marks.begin], [False]
    for role, segment in zip(roles, segments, strict=True):
        tokens += [openers[role], *segment, marks.end]
        is_answer += [False] + [role == "assistant"] * (len(segment) + 1)
    return tokens, is_answer


def _write_chat(source: Source, length: int) -> list[tuple[str, str]]:
    """Roles and texts of a chat that fills about `length` tokens or more."""
    most = length * 0.8 / TOKENS_PER_FACT
    facts = 0 if source.chance(0.02) else max(1, int(most * (0.35 + 0.65 * source.rng.random())))
    handbook = write_handbook(source, facts)
    turns = int((length - facts * TOKENS_PER_FACT * 0.9) / TOKENS_PER_TURN) + 2
    questions = [_write_turn(source, handbook) for _ in range(turns)]
    system, first = _place(source, handbook.text, questions[0].text)
    chat = [("system", system)] if system else []
    for index, question in enumerate(questions):
        chat.append(("user", question.text if index else first))
        chat.append(("assistant", question.answer))
    return chat


def _write_turn(source: Source, handbook: Handbook) -> Question:
    return write_small_talk(source) if source.chance(0.03) else write_question(source, handbook)


def _place(source: Source, handbook: str, question: str) -> tuple[str, str]:
    """System message and first user message: some users put the handbook before their question."""
    if source.chance(0.93):
        return handbook, question
    return "", f"{handbook}\n\n{question}"
