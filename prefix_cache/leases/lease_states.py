"""The slots of one lease for recurrent states, and the states in them.

A row reads the state at its start from one slot, and writes the state at its end to another slot.
So a failed launch is repeated from the same state. A state checkpoint is made by giving a slot to
the tree, without a copy.

    before  ->  at      the states that the newest launched row reads and writes
    coming              states at ends of blocks that are not committed yet
    kept                the last state at the end of a committed block; the tree gets it when the
                        lease ends

A row that verifies drafts also writes one state. If the state turns out to follow a rejected token,
the sequence continues from the state before (`verified_end`).

A sequence owns two slots. A sequence owns a third slot while sequences have less than half of all
slots. Where tiers are partitioned, the sequence owns a third slot while its owner's partition has a
free slot (`holds`). With three slots, the next row always finds a slot other than the newest
state's and the kept state's. With two slots, the next row overwrites the kept state. The lease also
reads states of the tree, which are not evicted meanwhile (`read`).

If the state is the ring buffer of a window (`in_place`), decodes write the slot that they read. The
ring stays valid at every position up to two blocks before the row's end. Rows of prompts write
another slot. A decode also writes another slot if the tree gets its old ring. An answer's end then
needs no third slot, and rejected drafts cost no recomputed tokens (`cut_back`).

Once a sequence has to wait for slots, running sequences also write recurrent states in place, until
they end (`overwrites`). A sequence then has one slot, and a second for its answer's end if it had
three. The sequence then verifies no drafts. If its row fails, the sequence starts over from the
cache.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from prefix_cache.errors import LeaseError
from prefix_cache.tree.node import Node


class StateAt(NamedTuple):
    """A recurrent state: its position and its slot."""

    position: int  # number of tokens before the recurrent state
    slot: int


@dataclass(slots=True, eq=False)
class LeaseStates:
    """The recurrent states of one lease. Only `StateLeasing` changes them."""

    at: StateAt
    before: StateAt
    owned: list[int]
    matched: int
    block_size: int
    wanted: set[int] = field(default_factory=set)  # positions of recurrent states for the tree
    kept: StateAt | None = None
    coming: list[StateAt] = field(default_factory=list)
    # The nodes whose checkpoints the lease's rows may still read, by slot.
    read: dict[int, Node] = field(default_factory=dict)
    given: list[Node] = field(default_factory=list)  # nodes that got a checkpoint of this lease
    # whether the slot for the answer's end is charged to the owner's partition
    holds: bool = False
    in_place: bool = False  # whether each recurrent state is a ring buffer
    # whether the lease has a third slot, for the state at its answer's end
    keeps_answer: bool = False
    overwrites: bool = False  # whether decodes overwrite the recurrent state that they read

    @property
    def is_overwritten(self) -> bool:
        """True if the newest launched row overwrote the recurrent state that it read."""
        return self.overwrites and self.before.slot == self.at.slot

    @property
    def is_shrinking(self) -> bool:
        """True if the sequence will give up a slot before its next decodes (`shrink`)."""
        return self.overwrites and len(self.owned) > 1 + self.keeps_answer

    def next_out(self, *, decodes: bool = False) -> int:
        """Choose the slot to which the next row writes. Raises LeaseError if no slot is left.

        Gives up the kept state if no other slot is left. With `decodes`, the row decodes one token,
        or verifies drafts with a ring buffer.
        """
        is_to_stay = self.at.position in self.wanted or self.at.slot not in self.owned
        if decodes and self.in_place and not is_to_stay:
            return self.at.slot
        used = {self.at.slot, *(one.slot for one in self.coming)}
        free = [slot for slot in self.owned if slot not in used]
        if decodes and self.overwrites and not is_to_stay and not self.wanted:
            is_end_of_block = self.at.position % self.block_size == 0
            if not (free and is_end_of_block):
                self._forget_in(self.at.slot)
                return self.at.slot
        if not free:
            raise LeaseError("a row is decided before the states of the rows before it are settled")
        if self.kept is None:
            return free[0]
        others = [slot for slot in free if slot != self.kept.slot]
        if not others:
            self.kept = None
        return (others or free)[0]

    def shrink(self) -> list[int]:
        """Give up the slots that a sequence does not need once it overwrites its state.

        Returns these slots.
        """
        if not self.keeps_answer:
            self.kept = None
        versions = [self.at, *self.coming, *([] if self.kept is None else [self.kept])]
        used = {one.slot for one in versions}
        most = len(self.owned) - 1 - self.keeps_answer
        spare = [slot for slot in self.owned if slot not in used][: max(most, 0)]
        self.owned = [slot for slot in self.owned if slot not in spare]
        return spare

    def _forget_in(self, slot: int) -> None:
        self.coming = [one for one in self.coming if one.slot != slot]
        if self.kept is not None and self.kept.slot == slot:
            self.kept = None

    def row_end(self, start: int, end: int, *, is_cut: bool) -> int:
        """Return the position at which a row of the tokens from `start` to `end` must end.

        This is the next position whose state the tree should keep, if there is one. Otherwise a row
        that is cut anyway (`is_cut`) ends at a block's end.
        """
        stop = self.stop_after(start)
        if stop is not None and stop <= end:
            return stop
        whole = end // self.block_size * self.block_size
        return whole if is_cut and whole > start else end

    def most_end(self, start: int) -> int:
        """Return the last position at which a row of drafts that begins at `start` may end.

        The row may pass one block's end but not two. The row writes a single recurrent state, and
        an answer that ends needs the state at its last block's end.
        """
        return (start // self.block_size + 2) * self.block_size - 1

    def verified_end(self, start: int, known: int, end: int, chance: float) -> int:
        """Return the position of the recurrent state that a row of drafts writes.

        The row has the tokens from `start` to `end`. The tokens from `known` on are drafts, and
        all are accepted with `chance`. After a rejected draft, a state at a later position is
        useless, and all the row's tokens are computed again.
        """
        whole = (start // self.block_size + 1) * self.block_size
        if whole <= end:
            return whole
        return end if chance * (end - known) > (1 - chance) * (known - start) else known

    def cut_back(self, end: int) -> None:
        """Move a ring's position back to `end`, after the verified tokens of the newest row."""
        self.coming = [one for one in self.coming if one.position <= end]
        self.at = self.at._replace(position=end)

    def stop_after(self, position: int) -> int | None:
        """Return the next position whose recurrent state is wanted, if any."""
        return min((one for one in self.wanted if one > position), default=None)
