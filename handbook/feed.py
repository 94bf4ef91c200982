"""Worker processes that write training rows ahead of the accelerator.

Workers read how far the training has come and write rows of the lengths that the curriculum wants
by then. Knows processes and the curriculum; nothing of models.
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

from handbook.names import Source, Split
from handbook.rows import Rows, write_rows
from handbook.tokenizer import load_tokenizer

AHEAD = 64


@dataclass(frozen=True)
class Stage:
    """From which share of the training on rows of which lengths are drawn, each as likely."""

    since: float
    lengths: tuple[int, ...]


CURRICULUM = (
    Stage(0.0, (256,)),
    Stage(0.06, (256, 1024, 1024)),
    Stage(0.2, (256, 1024, 3072, 3072, 4096)),
)
"""Short rows first: copying from near is learned there, and then from ever further away."""


def lengths_at(curriculum: tuple[Stage, ...], progress: float) -> tuple[int, ...]:
    """The row lengths of the last stage that has begun at `progress` in [0, 1]."""
    return [stage.lengths for stage in curriculum if stage.since <= progress][-1]


class Feed:
    """Batches of rows from worker processes; each batch has about `tokens` tokens."""

    def __init__(
        self, tokenizer: Path, curriculum: tuple[Stage, ...], tokens: int, seed: int
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._context = context
        self._batches: multiprocessing.Queue[Rows] = context.Queue(AHEAD)
        self._progress: Synchronized[float] = context.Value("d", 0.0)
        self._arguments = (tokenizer, curriculum, tokens, seed)

    @contextmanager
    def running(self, workers: int) -> Iterator[None]:
        """Keep `workers` processes writing while the context is open."""
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
        """Tell the workers how far the training has come, in [0, 1]."""
        self._progress.value = progress

    def next(self) -> Rows:
        """The next batch, waiting for it."""
        return self._batches.get()

    def next_if_ready(self) -> Rows | None:
        """The next batch, or None while none is ready."""
        try:
            return self._batches.get_nowait()
        except queue.Empty:
            return None


def _produce(
    batches: multiprocessing.Queue[Rows],
    progress: Synchronized[float],
    worker: int,
    directory: Path,
    curriculum: tuple[Stage, ...],
    tokens: int,
    seed: int,
) -> None:
    tokenizer = load_tokenizer(directory)
    source = Source(random.Random(f"rows {seed} {worker}"), Split.TRAIN)
    while True:
        lengths = lengths_at(curriculum, progress.value)
        length = lengths[source.number(0, len(lengths) - 1)]
        batches.put(write_rows(source, tokenizer, tokens // length, length))
