"""Repeats work on a GPU without a pause, so that the chip is as hot as serving makes it.

Knows: graphs and the clock. Does not know: what is repeated, or what is compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

_AT_ONCE_S = 0.03  # of replays that are launched before the host looks at the clock


def recorded(launch: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """A graph of `launch`, which has run before."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    return graph


def repeated(graph: torch.cuda.CUDAGraph, seconds: float) -> float:
    """Seconds of one replay, when the graph is replayed for so long."""
    begun = time.perf_counter()
    graph.replay()
    torch.cuda.synchronize()
    at_once = max(int(_AT_ONCE_S / (time.perf_counter() - begun)), 1)
    replays, pending = 0, list[torch.cuda.Event]()
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        for _ in range(at_once):
            graph.replay()
        replays += at_once
        pending.append(torch.cuda.Event())  # type: ignore[no-untyped-call]
        pending[-1].record()
        if len(pending) > 2:
            pending.pop(0).synchronize()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / replays
