"""The state slots of one lease, for recurrent layers, and the version of the state in each slot.

A row reads the state at its start from one slot, and writes the state at its end to another. So a
launch that failed is launched again from the same state, and a state checkpoint is made by handing
a slot over to the tree, without a copy.

    before  ->  at      the states that the newest launched row reads and writes
    coming              states at the ends of blocks, of rows that are not settled yet
    kept                the last state at the end of a settled block; the tree gets it at the end

A row that verifies drafts writes one state as well, at a position that may turn out to be after a
rejected token: then the sequence continues from the state before (`verified_end`).

A sequence owns two slots. It owns a third while sequences have less than half of all slots, or,
where tiers are partitioned, while its owner's partition has a free one (`holds`). When its next row
is decided, only the newest row may be unsettled. So of three slots one is free beside the newest
row's state and the kept state; with two slots the row overwrites the kept state. When the tree gets
a state before the sequence ends, the sequence gets another slot. States of the tree that a lease
reads are not evicted (`read`).

Where the state is the ring buffer of a window (`in_place`), decodes write the slot that they read:
the ring stays whole at every position up to two blocks before the row's end. All rows of prompts
write another slot, and so does a decode after which the tree gets the ring as it is. So an answer's
end needs no third slot, and no token is computed again after rejected drafts (`cut_back`).

Once a sequence has to wait for slots, running sequences write recurrent states in place too, until
they end (`overwrites`). A sequence then has one slot, and a second for its answer's end if it had
three: rows after the end of a block write the other slot. It verifies no drafts. A row that fails
cannot be computed again: its sequence starts over from the cache.

Knows: slots, positions in tokens, nodes. Does not know: rows, or what is in a slot.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from prefix_cache.errors import LeaseError
from prefix_cache.tree.node import Node


class StateAt(NamedTuple):
    """A recurrent state and the slot that holds it."""

    position: int  # number of tokens before the state
    slot: int


@dataclass(slots=True, eq=False)
class LeaseStates:
    """The recurrent states of one lease. Only `StateLeasing` changes them."""

    at: StateAt
    before: StateAt
    owned: list[int]
    matched: int  # tokens whose blocks were in the tree when the lease was taken
    block_size: int
    wanted: set[int] = field(default_factory=set)  # positions of states that the tree is to keep
    kept: StateAt | None = None
    coming: list[StateAt] = field(default_factory=list)
    # By slot: nodes whose checkpoint in that slot may still be read by rows of the lease.
    read: dict[int, Node] = field(default_factory=dict)
    given: list[Node] = field(default_factory=list)  # nodes that got a checkpoint of this lease
    # whether the owner's partition is charged with the slot for the answer's end
    holds: bool = False
    in_place: bool = False  # True if each state is a ring buffer
    # True if the lease got a third slot, for the state at its answer's end
    keeps_answer: bool = False
    overwrites: bool = False  # True if decodes overwrite the recurrent state that they read

    @property
    def is_overwritten(self) -> bool:
        """True if the newest launched row wrote over the recurrent state that it read."""
        return self.overwrites and self.before.slot == self.at.slot

    @property
    def is_shrinking(self) -> bool:
        """True if the next decodes give up a slot (`shrink`)."""
        return self.overwrites and len(self.owned) > 1 + self.keeps_answer

    def next_out(self, *, decodes: bool = False) -> int:
        """Choose the slot to which the next row writes; raise LeaseError if no slot is left.

        Gives up the kept state if no other slot is left. `decodes`: the row decodes one token or,
        where the state is a ring, verifies drafts.
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
        """Give up slots that a sequence does not need once it overwrites its state; return them."""
        if not self.keeps_answer:
            self.kept = None
        versions = [self.at, *self.coming, *([] if self.kept is None else [self.kept])]
        used = {one.slot for one in versions}
        most = len(self.owned) - 1 - self.keeps_answer
        spare = [slot for slot in self.owned if slot not in used][: max(most, 0)]
        self.owned = [slot for slot in self.owned if slot not in spare]
        return spare

    def _forget_in(self, slot: int) -> None:
        """Give up versions in a slot that is overwritten."""
        self.coming = [one for one in self.coming if one.slot != slot]
        if self.kept is not None and self.kept.slot == slot:
            self.kept = None

    def row_end(self, start: int, end: int, *, is_cut: bool) -> int:
        """Return the position at which a row that computes tokens from `start` up to `end` must
        end.

        The row ends at the next position whose state the tree is to keep; if there is none and the
        row is cut anyway (`is_cut`), at a block's end.
        """
        stop = self.stop_after(start)
        if stop is not None and stop <= end:
            return stop
        whole = end // self.block_size * self.block_size
        return whole if is_cut and whole > start else end

    def most_end(self, start: int) -> int:
        """Return the last position at which a row of drafts that begins at `start` may end.

        The row may pass one block's end, not two: it writes one recurrent state, and an answer that
        ends needs the state at its last block's end.
        """
        return (start // self.block_size + 2) * self.block_size - 1

    def verified_end(self, start: int, known: int, end: int, probability: float) -> int:
        """Return the position of the recurrent state that a row of drafts writes.

        The row has the tokens from `start` (the state's position) to `end`. The tokens at `known`
        and after are drafts; each is accepted with `probability` if the drafts before it are. If
        the state follows accepted drafts only, those drafts are not computed again. If it follows
        a rejected draft, all the row's tokens are computed again.
        """
        whole = (start // self.block_size + 1) * self.block_size
        if whole <= end:
            return whole
        chance = probability ** (end - known)
        return end if chance * (end - known) > (1 - chance) * (known - start) else known

    def cut_back(self, end: int) -> None:
        """Continue a ring at `end`, after the verified tokens of the newest row."""
        self.coming = [one for one in self.coming if one.position <= end]
        self.at = self.at._replace(position=end)

    def stop_after(self, position: int) -> int | None:
        """Return the next position whose state is wanted; None if no later state is."""
        return min((one for one in self.wanted if one > position), default=None)
