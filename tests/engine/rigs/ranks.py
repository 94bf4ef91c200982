"""Several ranks in one process: a thread each, that meet over gloo."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch

from engine.ranks.collectives import Collectives, Meeting

T = TypeVar("T")
CPU = torch.device("cpu")
PATIENCE = timedelta(seconds=60)


@contextmanager
def meeting_place() -> Iterator[str]:
    """The path of an empty file that goes with this process."""
    descriptor = os.memfd_create("ranks", os.MFD_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def on_ranks(num_ranks: int, compute: Callable[[Collectives], T]) -> list[T]:
    """What `compute` returns on each rank."""
    with meeting_place() as path, ThreadPoolExecutor(num_ranks) as threads:

        def run(rank: int) -> T:
            return compute(Collectives(Meeting(path, rank, num_ranks, PATIENCE), CPU))

        return list(threads.map(run, range(num_ranks)))
