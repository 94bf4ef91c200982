"""The grid of ranks: the stages of a pipeline, and the ranks that divide each stage's layers.

    stage     first | ... | last
    ranks      4, 5 | 2, 3 | 0, 1      three stages of two ranks each

Rank 0 schedules and samples. It computes the last stage, so that logits need not be sent. The first
stage receives the sampled tokens with the next step.

Elsewhere: the layers of each stage (`engine.models.stages`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankGrid:
    """A grid of `stages` stages with `tensor` ranks each."""

    tensor: int = 1
    stages: int = 1

    @property
    def num_ranks(self) -> int:
        """The number of all ranks."""
        return self.tensor * self.stages

    def stage_of(self, rank: int) -> int:
        """Return the stage of a rank. Stage 0 has the first layer."""
        return self.stages - 1 - rank // self.tensor

    def part_of(self, rank: int) -> int:
        """Return the rank's index among the ranks of its stage."""
        return rank % self.tensor
