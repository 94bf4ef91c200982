"""Distributes load among processes.

One Python process can read about 10,000 chunks a second; a server sends twice as many. Each process
has an event loop of its own, and all begin together.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import chain as joined
from typing import TypeVar

from cli.load.sending.sender import RequestOutcome

START_S = 60.0  # within which all processes have to be there
Part = TypeVar("Part")


def in_processes(
    run: Callable[[Part], list[RequestOutcome]], parts: Sequence[Part]
) -> list[RequestOutcome]:
    """What `run` gives of all parts, each in a process; a single one is run in this process.

    Raises BrokenProcessPool where a process does not start.
    """
    if len(parts) == 1:
        return run(parts[0])
    # Spawned, not forked: a fork of a process with threads may stand still.
    spawn = multiprocessing.get_context("spawn")
    together = spawn.Barrier(len(parts), timeout=START_S)
    with ProcessPoolExecutor(len(parts), mp_context=spawn, initializer=together.wait) as pool:
        return list(joined.from_iterable(pool.map(run, parts)))


def wall_seconds(outcomes: Sequence[RequestOutcome]) -> float:
    """From the first request's arrival to the last one's end."""
    began = min(outcome.arrived_at for outcome in outcomes)
    return max(outcome.arrived_at + outcome.e2e_s for outcome in outcomes) - began
