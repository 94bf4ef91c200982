"""Runs of blocks to copy together: blocks that are adjacent in both source and target.

sources   | 3 4 5 |     9     | 11 |
targets   | 7 8 9 |     1     |  0 |      three runs, each one copy
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

Slots = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of blocks from `sources` to `targets`, both (blocks, block_bytes) uint8 and contiguous.

    Run i has `counts[i]` blocks. The run's first block goes from `source_slots[i]` to
    `target_slots[i]`.
    """

    targets: Tensor
    sources: Tensor
    target_slots: Slots
    source_slots: Slots
    counts: Slots

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def num_blocks(self) -> int:
        """The number of blocks in all runs."""
        return int(self.counts.sum())

    def views(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (target, source) views of each run, (count, block_bytes)."""
        places = zip(self.target_slots.tolist(), self.source_slots.tolist(), self.counts.tolist(),
                     strict=True)  # fmt: skip
        for target, source, count in places:
            yield self.targets[target : target + count], self.sources[source : source + count]

    def single(self) -> Runs:
        """Return these runs, split into runs of one block each."""
        first = np.cumsum(self.counts) - self.counts
        inside = np.arange(self.num_blocks) - np.repeat(first, self.counts)
        return Runs(
            self.targets,
            self.sources,
            np.repeat(self.target_slots, self.counts) + inside,
            np.repeat(self.source_slots, self.counts) + inside,
            np.ones(self.num_blocks, np.int64),
        )

    def part(self, places: slice) -> Runs:
        """Return the runs at `places`."""
        return Runs(
            self.targets,
            self.sources,
            self.target_slots[places],
            self.source_slots[places],
            self.counts[places],
        )


def runs_of(targets: Tensor, sources: Tensor, target_slots: Slots, source_slots: Slots) -> Runs:
    """Pair block `source_slots[i]` with `target_slots[i]`, and join neighbours into runs.

    No array has a slot twice.
    """
    order = np.argsort(source_slots)
    of, to = source_slots[order], target_slots[order]
    begins = np.ones(len(of), np.bool_)
    begins[1:] = (np.diff(of) != 1) | (np.diff(to) != 1)
    first = np.flatnonzero(begins)
    return Runs(targets, sources, to[first], of[first], np.diff(first, append=len(of)))
