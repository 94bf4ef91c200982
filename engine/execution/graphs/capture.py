"""The capture of a function's launches on a CUDA device as one graph, for replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from kernels.launch.garbage import uncollected

Launches = Callable[[], tuple[Tensor, ...]]
# In the mode "global", CUDA refuses some calls of other threads during a capture. A thread that
# pins the host tier's memory would then break the capture.
CAPTURE_MODE = "thread_local"


class Captured(Protocol):
    """An interface to captured launches that can be replayed."""

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The tensors that the captured function returned. Each replay overwrites them."""
        ...

    def replay(self) -> None:
        """Launch the captured work again without waiting."""
        ...

    def drop(self) -> None:
        """Free the captured graph, which cannot be replayed afterwards."""
        ...


class Capture(Protocol):
    """An interface that captures functions' launches."""

    def record(self, trial: Launches, launches: Launches) -> Captured:
        """Run `trial` to compile and load all kernels, then capture `launches`.

        `trial` launches every kernel of `launches` at least once, but may be shorter.
        """
        ...


class CudaCaptured:
    """A CUDA graph and its outputs."""

    def __init__(self, graph: torch.cuda.CUDAGraph, outputs: tuple[Tensor, ...]) -> None:
        self.outputs = outputs
        self._graph = graph

    def replay(self) -> None:
        """Launch the graph on the current stream."""
        self._graph.replay()

    def drop(self) -> None:
        """Destroy the graph."""
        self._graph.reset()


class CudaCapture:
    """The capture of all graphs with one memory pool.

    The graphs share the memory of temporary tensors and of outputs. A graph's outputs are valid
    only until the next replay of any graph.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def record(self, trial: Launches, launches: Launches) -> CudaCaptured:
        """Run `trial` and capture on one stream, because cuBLAS has a workspace per stream."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            trial()
            captured = self._capture(launches)
        torch.cuda.current_stream().wait_stream(self._stream)
        return captured

    def _capture(self, launches: Launches) -> CudaCaptured:
        """Capture like `torch.cuda.graph`, but do not free memory or synchronise each time.

        An error of `launches` ends the capture and is raised. If it occurs in the first graph, no
        later capture is possible.
        """
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode=CAPTURE_MODE)
        try:
            outputs = launches()
        finally:
            graph.capture_end()
        return CudaCaptured(graph, outputs)


@contextmanager
def cuda_capture() -> Iterator[CudaCapture]:
    """Open a `CudaCapture`, and pause garbage collection until it is closed.

    Graphs allocate memory from the device, so torch returns its cached memory to the device before
    and after. Garbage collection could run a finaliser that calls CUDA, which would break a
    capture.
    """
    with uncollected():
        _free_what_torch_keeps()
        yield CudaCapture()
        _free_what_torch_keeps()


def _free_what_torch_keeps() -> None:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
