"""Records what a function launches on a CUDA device, to launch it again as one graph.

Knows: streams, graphs, their memory. Does not know: what is launched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

Launches = Callable[[], tuple[Tensor, ...]]


class Recorded(Protocol):
    """Launches that can be repeated."""

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """What the function returned; each replay writes the same tensors."""
        ...

    def replay(self) -> None:
        """Launch it all again; waits for nothing."""
        ...


class Recorder(Protocol):
    """Makes `Recorded` out of functions."""

    def record(self, launches: Launches) -> Recorded:
        """Run `launches` at least once, and remember it."""
        ...


class CudaRecorded:
    """A CUDA graph and its outputs."""

    def __init__(self, graph: torch.cuda.CUDAGraph, outputs: tuple[Tensor, ...]) -> None:
        self.outputs = outputs
        self._graph = graph

    def replay(self) -> None:
        """Launch the graph on the current stream."""
        self._graph.replay()


class CudaRecorder:
    """Records all graphs into one memory pool.

    They share their temporary memory, and that of their outputs: these are valid only until any of
    the graphs is replayed next, in the order of the stream.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def record(self, launches: Launches) -> CudaRecorded:
        """Run once, so that all is compiled and loaded, then record."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            launches()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            outputs = launches()
        return CudaRecorded(graph, outputs)
