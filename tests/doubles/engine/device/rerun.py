"""A capture for machines without CUDA graphs: a replay runs the function again."""

from __future__ import annotations

from torch import Tensor

from engine.execution.graphs.capture import Launches


class RerunCaptured:
    """A captured function, and the tensors that its first run returned."""

    def __init__(self, launches: Launches) -> None:
        self.outputs: tuple[Tensor, ...] = launches()
        self._launches = launches
        self.is_dropped = False

    def replay(self) -> None:
        assert not self.is_dropped
        for kept, fresh in zip(self.outputs, self._launches(), strict=True):
            kept.copy_(fresh)

    def drop(self) -> None:
        self.is_dropped = True


class Rerun:
    """A `Capture` that counts the functions it has recorded."""

    def __init__(self) -> None:
        self.captured = 0

    def record(self, trial: Launches, launches: Launches) -> RerunCaptured:
        trial()
        self.captured += 1
        return RerunCaptured(launches)
