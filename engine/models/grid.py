"""Which rank is what: the stages of a pipeline, and within each the ranks that divide its layers.

    stage     first | ... | last
    ranks      4, 5 | 2, 3 | 0, 1      of three stages of two ranks each

Rank 0 schedules and samples, so the last stage is its own: logits need not travel. What it samples
comes to the first stage with the next step that has it.

Of several nodes (machines) each has as many stages, whole ones, and node 0 the last. Of the above,
three nodes have the ranks 0 and 1, 2 and 3, 4 and 5.

Knows: numbers. Does not know: which layers a stage has (`engine.models.stages`), or processes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankGrid:
    """`stages` stages of `tensor` ranks each, on `nodes` machines."""

    tensor: int = 1
    stages: int = 1
    nodes: int = 1

    @property
    def num_ranks(self) -> int:
        """All."""
        return self.tensor * self.stages

    @property
    def ranks_per_node(self) -> int:
        """Those of one machine."""
        return self.num_ranks // self.nodes

    def ranks_of(self, node: int) -> range:
        """The ranks of one machine."""
        return range(node * self.ranks_per_node, (node + 1) * self.ranks_per_node)

    def stage_of(self, rank: int) -> int:
        """The stage that a rank computes, 0 the one with the first layer."""
        return self.stages - 1 - rank // self.tensor

    def part_of(self, rank: int) -> int:
        """Which part of its stage's layers a rank has."""
        return rank % self.tensor
