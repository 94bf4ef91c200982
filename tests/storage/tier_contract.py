"""Properties of every tier, tested in the same way.

A subclass in `test_tiers.py` names the tier. Tests use it through `Shelf`: blocks are moved into
slots and read again, as the engine does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pytest
import torch
from torch import Tensor

from storage.errors import UnknownSlot
from tests.storage.scene import content


class Shelf(Protocol):
    """A tier of `num_slots` slots, in which at first slot n holds block `content(n)`."""

    num_slots: int

    def put(self, slots: Sequence[int], numbers: Sequence[int]) -> int:
        """Move these blocks to these slots; return the number of blocks that arrived."""

    def get(self, slots: Sequence[int], numbers: Sequence[int]) -> list[Tensor | None]:
        """Return the content of each slot that still holds the given block, else None."""

    def get_and_put(
        self, slots: Sequence[int], numbers: Sequence[int], to: Sequence[int], new: Sequence[int]
    ) -> list[Tensor | None]:
        """Read slots and write others in one plan."""

    def erase(self, slots: Sequence[int]) -> None:
        """Erase these slots."""


class TierContract:
    """The tests. `forgets`: the tier knows that an erased slot is empty."""

    forgets = False

    def test_gives_back_bit_for_bit_what_was_put(self, shelf: Shelf) -> None:
        slots = list(range(shelf.num_slots))
        assert shelf.put(slots, slots) == len(slots)
        for number, found in zip(slots, shelf.get(slots, slots), strict=True):
            assert found is not None
            assert torch.equal(found, content(number))

    def test_slots_need_not_follow_each_other(self, shelf: Shelf) -> None:
        last = shelf.num_slots - 1
        slots, numbers = [last, 0, 5, 3, 4], [1, 2, 7, 4, 6]
        assert shelf.put(slots, numbers) == 5
        for number, found in zip(numbers, shelf.get(slots, numbers), strict=True):
            assert found is not None
            assert torch.equal(found, content(number))

    def test_overwrites(self, shelf: Shelf) -> None:
        shelf.put([2, 3], [10, 11])
        shelf.put([2], [12])
        for number, found in zip([12, 11], shelf.get([2, 3], [12, 11]), strict=True):
            assert found is not None
            assert torch.equal(found, content(number))

    def test_fills_a_slot_anew_that_was_erased(self, shelf: Shelf) -> None:
        shelf.put([4], [1])
        shelf.erase([4])
        if self.forgets:
            shelf.put([5], [2])  # later moves write later, but may read earlier
            assert shelf.get([4], [1]) == [None]
        assert shelf.put([4], [9]) == 1
        (found,) = shelf.get([4], [9])
        assert found is not None
        assert torch.equal(found, content(9))

    def test_an_erased_neighbour_changes_nothing(self, shelf: Shelf) -> None:
        shelf.put([1, 2, 3], [1, 2, 3])
        shelf.erase([2])
        for number, found in zip([1, 3], shelf.get([1, 3], [1, 3]), strict=True):
            assert found is not None
            assert torch.equal(found, content(number))

    def test_reads_and_writes_in_one_plan_do_not_disturb_each_other(self, shelf: Shelf) -> None:
        old, new = list(range(8)), list(range(8, 16))
        shelf.put(old, old)
        for number, found in zip(old, shelf.get_and_put(old, old, new, new), strict=True):
            assert found is not None
            assert torch.equal(found, content(number))
        for number, found in zip(new, shelf.get(new, new), strict=True):
            assert found is not None
            assert torch.equal(found, content(number))

    @pytest.mark.parametrize("beyond", [-1, 0])
    def test_refuses_slots_it_does_not_have_and_moves_nothing(
        self, shelf: Shelf, beyond: int
    ) -> None:
        wrong = shelf.num_slots if beyond == 0 else beyond
        shelf.put([0], [3])
        with pytest.raises(UnknownSlot):
            shelf.put([0, wrong], [5, 6])
        (found,) = shelf.get([0], [3])
        assert found is not None
        assert torch.equal(found, content(3))
