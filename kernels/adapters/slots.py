"""The adapters' low-rank matrices for one matrix of the model, by slot, and each token's slot.

    a (slots, parts R, K)    b (slots, N, R)        K inputs, N outputs, R the maximum rank

A matrix may join several matrices of the model files by rows. Each of these parts has an A of its
own, and the rows of their B are joined like the rows of the parts. If an adapter lacks a part, its
numbers are 0. Slot 0 contains only zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.experts.order import PairTiles
from kernels.launch.rounding import next_power_of_2

LEAST_RANK = 16  # minimum number of columns that tensor cores multiply


@dataclass(frozen=True, slots=True)
class SlotMatrices:
    """The matrices `a` and `b` of all slots, and the rows at which the parts of `b` begin."""

    a: Tensor
    b: Tensor
    rows: tuple[int, ...]
    starts: Tensor  # first row of each part, then the number of rows, (parts + 1,) int32

    @classmethod
    def zeros(
        cls, num_slots: int, rows: Sequence[int], size_in: int, most_rank: int, like: Tensor
    ) -> SlotMatrices:
        """Allocate empty slots for adapters of rank up to `most_rank`, on the device of `like`.

        The dtype is also that of `like`. The rank is rounded up to a power of two.
        """
        rank = next_power_of_2(max(most_rank, LEAST_RANK))
        ends = torch.tensor([0, *rows], device=like.device).cumsum(0).int()
        return cls(
            like.new_zeros((num_slots, len(rows) * rank, size_in)),
            like.new_zeros((num_slots, sum(rows), rank)),
            tuple(rows),
            ends,
        )

    @property
    def num_slots(self) -> int:
        """The number of slots, including slot 0."""
        return self.a.shape[0]

    @property
    def rank(self) -> int:
        """The maximum rank R of an adapter, rounded up to a power of two."""
        return self.b.shape[2]

    def clear(self, slot: int, count: int = 1) -> None:
        """Set `count` slots to zero, from `slot` on."""
        self.a[slot : slot + count].zero_()
        self.b[slot : slot + count].zero_()

    def load(self, slot: int, part: int, a: Tensor, b: Tensor) -> None:
        """Copy A (rank, K) and B (rows, rank) of one part to an empty slot."""
        first, rank = sum(self.rows[:part]), a.shape[0]
        self.a[slot, part * self.rank :][:rank].copy_(a)
        self.b[slot, first : first + self.rows[part], :rank].copy_(b)

    def load_several(self, slot: int, part: int, a: Tensor, b: Tensor) -> None:
        """Copy A (count, rank, K) and B (count, rows, rank) to empty slots from `slot` on."""
        first, (count, rank, _) = sum(self.rows[:part]), a.shape
        own = slice(slot, slot + count)
        self.a[own, part * self.rank : part * self.rank + rank].copy_(a)
        self.b[own, first : first + self.rows[part], :rank].copy_(b)


@dataclass(frozen=True, slots=True)
class TokenSlots:
    """The slot of each token (T,) int32. For kernels, also the tokens in tiles of one slot each."""

    slots: Tensor
    num_slots: int
    tiles: PairTiles | None = None
