"""Concurrent jobs of several processes, each process with its own GPU.

A job takes one GPU for each rank, as soon as enough GPUs are free; jobs wait in their order. Each
rank is a forked process, with its result and its log in files. Without GPUs, names stand for them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.doubles.forks.server import fork_server

LOG_LINES = 25  # number of the last lines shown of a failed rank's log
LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Job:
    """A call of `compute(rank, num_ranks, directory, *args)` on each rank; torch saves the results.

    `compute`, and functions in `args`, must be importable. Each job has its own directory.
    """

    num_ranks: int
    compute: Callable[..., Any]
    args: tuple[Any, ...]
    directory: Path
    limit_s: float = 120.0


class JobFailed(Exception):
    """The error of a job with failed ranks. Its message has the last log lines of these ranks."""


class Gpus:
    """The free GPUs, shared by the threads of this process."""

    def __init__(self, names: Sequence[str]) -> None:
        """Make all GPUs free; `names` are those of CUDA_VISIBLE_DEVICES."""
        self._free = list(names)
        self._changed = threading.Condition()
        self._queue: list[object] = []

    @contextmanager
    def taken(self, count: int) -> Iterator[list[str]]:
        """Yield `count` GPUs once they are free; callers wait in the order of their calls."""
        place = object()
        with self._changed:
            self._queue.append(place)
            self._changed.wait_for(lambda: self._queue[0] is place and len(self._free) >= count)
            self._queue.remove(place)
            mine, self._free = self._free[:count], self._free[count:]
            self._changed.notify_all()
        try:
            yield mine
        finally:
            with self._changed:
                self._free = sorted((*self._free, *mine))
                self._changed.notify_all()


def visible_gpus() -> list[str]:
    """Return the GPUs' names in CUDA_VISIBLE_DEVICES, or no names if torch sees no GPU."""
    found = torch.cuda.device_count()
    named = [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
    return (named or [str(index) for index in range(found)])[:found]


def started(jobs: Sequence[Job], gpus: Sequence[str]) -> list[Future[list[Any]]]:
    """Start each job once enough GPUs are free; return futures of the ranks' results."""
    free, threads = Gpus(gpus), ThreadPoolExecutor(max(len(jobs), 1))
    asked: list[Future[list[Any]]] = []
    for job in jobs:
        is_asked = threading.Event()
        asked.append(threads.submit(_in_turn, job, free, is_asked))
        is_asked.wait()
    threads.shutdown(wait=False)
    return asked


def _in_turn(job: Job, free: Gpus, is_asked: threading.Event) -> list[Any]:
    is_asked.set()
    with free.taken(job.num_ranks) as gpus:
        return results(job, gpus)


def results(job: Job, gpus: Sequence[str]) -> list[Any]:
    """Return each rank's result. Raises JobFailed if a rank fails; the others are then killed."""
    job.directory.mkdir(parents=True, exist_ok=True)
    ranks = [
        fork_server().Process(target=_be_rank, args=(job, rank, list(gpus)), daemon=True)
        for rank in range(job.num_ranks)
    ]
    for one in ranks:
        one.start()
    give_up = time.monotonic() + job.limit_s
    while any(one.exitcode is None for one in ranks):
        if any(one.exitcode for one in ranks) or time.monotonic() > give_up:
            break
        time.sleep(LOOK_S)
    failed = [rank for rank, one in enumerate(ranks) if one.exitcode != 0]
    for one in ranks:
        one.kill()
        one.join()
    if failed:
        raise JobFailed("\n".join(_told(job, rank) for rank in failed))
    files = [job.directory / f"rank-{rank}.pt" for rank in range(job.num_ranks)]
    return [torch.load(file, weights_only=False) for file in files]


def _told(job: Job, rank: int) -> str:
    log = job.directory / f"rank-{rank}.log"
    lines = log.read_text().splitlines() if log.exists() else []
    return "\n".join([f"rank {rank} has not ended well:", *lines[-LOG_LINES:]])


def _be_rank(job: Job, rank: int, gpus: Sequence[str]) -> None:
    log = os.open(job.directory / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    logging.basicConfig(level=logging.INFO, force=True)
    torch.set_num_threads(1)
    result = job.compute(rank, job.num_ranks, job.directory, *job.args)
    torch.save(result, job.directory / f"rank-{rank}.pt")
