"""Training rows: a handbook and a long dialogue about it, some with tools.

With many questions about one handbook, many tokens of a row are answers to learn. Worker processes
write rows ahead of the accelerator, with the lengths of the curriculum's current stage.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from handbook.training.hermes import written
from handbook.training.names import NameSource, Split
from handbook.training.text import write_handbook, write_question, write_small_talk
from handbook.training.tokenizer import ASSISTANT, BEGIN, END, SYSTEM, USER, load_tokenizer
from handbook.training.tool_chats import write_bare_chat, write_tool_chat

TOKENS_PER_FACT = 20
TOKENS_PER_TURN = 18
TOKENS_PER_TOOL = 130
TOKENS_PER_TOOL_TURN = 70
AHEAD = 64
TOOL_SHARE = 0.4
"""The share of rows that offer tools."""
BARE_SHARE = 0.1
"""The share of rows with questions that only tools could answer, but without tools."""


@dataclass(frozen=True)
class Rows:
    """Token ids (rows, length + 1), uint16, and a bool mask of right answers."""

    ids: NDArray[np.uint16]
    answers: NDArray[np.bool_]


def write_rows(source: NameSource, tokenizer: Tokenizer, count: int, length: int) -> Rows:
    """Write `count` rows of `length` + 1 tokens. Dialogues are cut off at a row's end."""
    chats = [_drawn(source, length) for _ in range(count)]
    encoded = tokenizer.encode_batch_fast([part for chat in chats for _, part in chat])
    vocabulary, position = tokenizer.get_vocab(), 0
    ids = np.full((count, length + 1), vocabulary[END], dtype=np.uint16)
    answers = np.zeros((count, length + 1), dtype=np.bool_)
    for row, chat in enumerate(chats):
        segments = [encoding.ids for encoding in encoded[position : position + len(chat)]]
        position += len(chat)
        tokens, is_answer = frame([role for role, _ in chat], segments, vocabulary)
        filled = min(len(tokens), length + 1)
        ids[row, :filled] = tokens[:filled]
        answers[row, :filled] = is_answer[:filled]
    return Rows(ids, answers)


def frame(
    roles: list[str], segments: list[list[int]], vocabulary: dict[str, int]
) -> tuple[list[int], list[bool]]:
    """Apply the chat template to encoded messages, and mark the tokens that the model generates."""
    openers = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT}
    tokens, is_answer = [vocabulary[BEGIN]], [False]
    for role, segment in zip(roles, segments, strict=True):
        tokens += [vocabulary[openers[role]], *segment, vocabulary[END]]
        is_answer += [False] + [role == "assistant"] * (len(segment) + 1)
    return tokens, is_answer


@dataclass(frozen=True)
class TrainingStage:
    """A stage of the training, with the lengths of its rows, which are equally likely."""

    since: float
    lengths: tuple[int, ...]


CURRICULUM = (
    TrainingStage(0.0, (256,)),
    TrainingStage(0.06, (256, 1024, 1024)),
    TrainingStage(0.2, (256, 1024, 3072, 3072, 4096)),
)
"""Short rows come first. The model learns to copy from nearby, then from further away."""

WARM_CURRICULUM = (TrainingStage(0.0, (512, 1024, 2048, 4096)),)
"""For a model that already copies. Each length costs a compilation, so there are few."""


def lengths_at(curriculum: tuple[TrainingStage, ...], progress: float) -> tuple[int, ...]:
    """Return the row lengths of the stage at `progress` in [0, 1]."""
    return [stage.lengths for stage in curriculum if stage.since <= progress][-1]


class Feed:
    """A feed of training batches from worker processes, of about `tokens` tokens each."""

    def __init__(
        self, tokenizer: Path, curriculum: tuple[TrainingStage, ...], tokens: int, seed: int
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._context = context
        self._batches: multiprocessing.Queue[Rows] = context.Queue(AHEAD)
        self._progress: Synchronized[float] = context.Value("d", 0.0)
        self._arguments = (tokenizer, curriculum, tokens, seed)

    @contextmanager
    def running(self, workers: int) -> Iterator[None]:
        """Keep `workers` processes writing rows while the context is open."""
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        processes = [
            self._context.Process(
                target=_produce,
                args=(self._batches, self._progress, worker, *self._arguments),
                daemon=True,
            )
            for worker in range(workers)
        ]
        for process in processes:
            process.start()
        try:
            yield
        finally:
            for process in processes:
                process.terminate()
                process.join()

    def advance(self, progress: float) -> None:
        """Send the workers the progress of the training, in [0, 1]."""
        self._progress.value = progress

    def next(self) -> Rows:
        """Wait for the next batch and return it."""
        return self._batches.get()

    def next_if_ready(self) -> Rows | None:
        """Return the next batch, or None if none is ready."""
        try:
            return self._batches.get_nowait()
        except queue.Empty:
            return None


def _produce(
    batches: multiprocessing.Queue[Rows],
    progress: Synchronized[float],
    worker: int,
    directory: Path,
    curriculum: tuple[TrainingStage, ...],
    tokens: int,
    seed: int,
) -> None:
    tokenizer = load_tokenizer(directory)
    source = NameSource(random.Random(f"rows {seed} {worker}"), Split.TRAIN)
    while True:
        lengths = lengths_at(curriculum, progress.value)
        length = source.pick(lengths)
        batches.put(write_rows(source, tokenizer, tokens // length, length))


def _drawn(source: NameSource, length: int) -> list[tuple[str, str]]:
    draw = source.rng.random()
    if draw < TOOL_SHARE:
        return _write_tool_chat(source, length)
    if draw < TOOL_SHARE + BARE_SHARE:
        return _write_bare_chat(source, length)
    return _write_chat(source, length)


def _write_chat(source: NameSource, length: int) -> list[tuple[str, str]]:
    most = length * 0.8 / TOKENS_PER_FACT
    facts = 0 if source.chance(0.02) else max(1, int(most * (0.35 + 0.65 * source.rng.random())))
    handbook = write_handbook(source, facts)
    turns = int((length - facts * TOKENS_PER_FACT * 0.9) / TOKENS_PER_TURN) + 2
    questions = [
        write_small_talk(source) if source.chance(0.03) else write_question(source, handbook)
        for _ in range(turns)
    ]
    system, first = _place(source, handbook.text, questions[0].text)
    chat = [("system", system)] if system else []
    for index, question in enumerate(questions):
        chat.append(("user", question.text if index else first))
        chat.append(("assistant", question.answer))
    return chat


def _write_tool_chat(source: NameSource, length: int) -> list[tuple[str, str]]:
    most = max(0.0, length - 2 * TOKENS_PER_TOOL - TOKENS_PER_TOOL_TURN) * 0.8 / TOKENS_PER_FACT
    facts = 0 if source.chance(0.1) else int(most * source.rng.random() ** 1.5)
    left = length - facts * TOKENS_PER_FACT * 0.9 - TOKENS_PER_TOOL
    turns = max(1, int(left / TOKENS_PER_TOOL_TURN)) + 1
    chat = write_tool_chat(source, facts, turns, most_tools=3 if length > 512 else 1)
    return written(chat.messages, chat.schemas)


def _write_bare_chat(source: NameSource, length: int) -> list[tuple[str, str]]:
    most = length * 0.8 / TOKENS_PER_FACT
    facts = 0 if source.chance(0.6) else int(most * source.rng.random() ** 1.5)
    left = length - facts * TOKENS_PER_FACT * 0.9
    return written(write_bare_chat(source, facts, int(left / TOKENS_PER_TURN) + 1).messages)


def _place(source: NameSource, handbook: str, question: str) -> tuple[str, str]:
    if source.chance(0.93):
        return handbook, question
    return "", f"{handbook}\n\n{question}"
