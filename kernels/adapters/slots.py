"""The adapters' matrices beside a model's matrix, by slot, and the slot of each token.

    a (slots, parts R, K)    b (slots, N, R)        K inputs, N outputs, R the largest rank

A matrix may join several matrices of the model files, one below the other. Each of these parts has
an A, and the parts' B lie below each other like the rows of the parts. Parts that an adapter does
not have are 0, and so is slot 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.experts.order import PairTiles
from kernels.launch.rounding import next_power_of_2

LEAST_RANK = 16  # minimum number of columns of a product on tensor cores


@dataclass(frozen=True, slots=True)
class SlotMatrices:
    """The matrices `a` and `b` of all slots, and where the parts of `b` start and end."""

    a: Tensor
    b: Tensor
    rows: tuple[int, ...]
    starts: Tensor  # (parts + 1,) int32

    @classmethod
    def zeros(
        cls, num_slots: int, rows: Sequence[int], size_in: int, most_rank: int, like: Tensor
    ) -> SlotMatrices:
        """Allocate empty slots for adapters of up to `most_rank`, with dtype and device of `like`.

        The rank is rounded up to a power of two.
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
        """The maximum rank of an adapter, rounded up: R."""
        return self.b.shape[2]

    def clear(self, slot: int, count: int = 1) -> None:
        """Empty `count` slots, the first of which is `slot`."""
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
    """The slot of each token (T,) int32, and for kernels the tokens in tiles of one slot each."""

    slots: Tensor
    num_slots: int
    tiles: PairTiles | None = None
