"""Records what a function launches on a CUDA device, to launch it again as one graph.

Knows: streams, graphs, their memory. Does not know: what is launched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from kernels.garbage import uncollected

Launches = Callable[[], tuple[Tensor, ...]]
# What other threads ask of CUDA meanwhile is their affair: one of them pins the host tier, which
# in the mode "global" would be refused and would end the recording.
CAPTURE_MODE = "thread_local"


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

    def record(self, trial: Launches, launches: Launches) -> Recorded:
        """Run `trial`, so that all is compiled and loaded; then remember `launches`.

        A trial launches every kernel of `launches` at least once, but need not be as long.
        """
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

    def record(self, trial: Launches, launches: Launches) -> CudaRecorded:
        """Try once, on the stream of the recording, since cuBLAS has a workspace for each."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            trial()
            recorded = self._capture(launches)
        torch.cuda.current_stream().wait_stream(self._stream)
        return recorded

    def _capture(self, launches: Launches) -> CudaRecorded:
        """As `torch.cuda.graph` does, which first frees memory and waits for the device each time.

        What `launches` raises leaves with the recording ended. If it was the first, this recorder
        records no more: torch does not use a pool again whose graphs are all gone.
        """
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode=CAPTURE_MODE)
        try:
            outputs = launches()
        finally:
            graph.capture_end()
        return CudaRecorded(graph, outputs)


@contextmanager
def cuda_recorder() -> Iterator[CudaRecorder]:
    """A recorder, and around all that it records what a recording asks for.

    Graphs take their memory from the device, not from what torch keeps of freed tensors; so that is
    given back before, and again afterwards, when the trials have left theirs. And no garbage
    is collected meanwhile: a finaliser may call CUDA, which ends a recording under way.
    """
    with uncollected():
        _free_what_torch_keeps()
        yield CudaRecorder()
        _free_what_torch_keeps()


def _free_what_torch_keeps() -> None:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
