"""The process groups of one rank, and the meeting of all ranks at the start.

    every     all ranks; exchanges numbers and bytes at the start
    tensor    the ranks that divide the layers of this rank's stage (`RankGroup`)
    pipe      the ranks that have the same part of each stage (`Pipe`)

Elsewhere: the transports (`collectives`, `pipe`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from engine.models.grid import RankGrid
from engine.ranks.collectives import Collectives, Rendezvous
from engine.ranks.pipe import StagePipe
from storage.layouts.stage import Stage

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class RankGroups:
    """The groups of one rank. Used by one thread only."""

    every: Collectives
    tensor: Collectives | None  # None: one rank computes each stage
    stages: Collectives | None  # None: there is a single stage
    pipe: StagePipe | None

    @property
    def rank(self) -> int:
        """The number of this rank among all ranks."""
        return self.every.rank

    def least(self, number: int) -> int:
        """Return the minimum of all ranks' numbers. Waits for all ranks."""
        return self.every.least(number)

    def of_first(self, value: bytes) -> bytes:
        """Return rank 0's `value`, which has the same length on all ranks. Waits for rank 0."""
        return self.every.of_first(value)

    def close(self) -> None:
        """Leave all groups without waiting for other ranks."""
        for group in {id(one): one for one in (self.every, self.tensor, self.stages)}.values():
            if group is not None:
                group.close()


def meet(place: Rendezvous, grid: RankGrid, stage: Stage, device: torch.device) -> RankGroups:
    """Wait for all ranks, and make this rank's groups.

    `place` is the meeting point of all ranks, and `stage` the stage that this rank computes. Raises
    RankLeft if a rank does not arrive or has ended.
    """
    if grid.stages == 1:
        every = Collectives(place, device)
        return RankGroups(every, every, None, None)
    every = Collectives(place, CPU)
    tensor, part = None, grid.part_of(place.rank)
    if grid.tensor > 1:
        own = replace(place, name=f"stage {stage.index}", rank=part, num_ranks=grid.tensor)
        tensor = Collectives(own, device)
    same = replace(place, name=f"part {part}", rank=stage.index, num_ranks=grid.stages)
    stages = Collectives(same, device)
    return RankGroups(every, tensor, stages, StagePipe(stage, stages, device))
