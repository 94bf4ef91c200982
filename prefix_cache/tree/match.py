"""The match of a prompt with the tree: its length, and the tiers of its KV blocks.

A match is made once and extended later. While its last node is attached and has not become shorter,
all nodes before it are in place too. Then the walk continues from the match's end. Otherwise the
walk begins at the root again.

A recurrent state cannot be cut back as KV can. So for a model with recurrent layers, a prompt can
use the matched blocks only up to their last state checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from prefix_cache.tree.node import Position
from prefix_cache.tree.residency import DEVICE, HOST, IN_FLIGHT, MOVING, WITHOUT
from storage.move import Tier

COMING = IN_FLIGHT * DEVICE


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """The blocks of a prefix by tier, in their order along the prefix."""

    device: int
    coming: int  # blocks being copied to the device
    host: int  # blocks in the host and not in a faster tier
    disk: int
    # The lower tier from which the recurrent state at the blocks' end must be loaded. None if no
    # state is needed, or if the device has or gets it.
    state: Tier | None = None

    @property
    def total(self) -> int:
        """The number of blocks in the tree."""
        return self.device + self.coming + self.host + self.disk


def whereabouts(at: Position) -> Whereabouts:
    """Count the blocks up to `at` by their fastest tier. Blocks being loaded count separately."""
    if at.inside <= at.node.edge.num_device:
        return Whereabouts(at.num_blocks, 0, 0, 0, _state_below(at))
    states = np.frombuffer(_states_to(at), np.uint8)
    device, coming = states & DEVICE != 0, states & COMING != 0
    host = (states & HOST != 0) & ~device & ~coming
    on_device, on_way, in_host = (int(np.count_nonzero(part)) for part in (device, coming, host))
    on_disk = len(states) - on_device - on_way - in_host
    return Whereabouts(on_device, on_way, in_host, on_disk, _state_below(at))


def _state_below(at: Position) -> Tier | None:
    checkpoint = None if at.within else at.node.checkpoint
    if checkpoint is None or checkpoint.device_slot is not None:
        return None
    return checkpoint.lower_tier


@dataclass(frozen=True, slots=True, eq=False)
class PrefixMatch:
    """A prompt's leading whole blocks in the tree, at the time of the match."""

    at: Position  # end of the usable blocks
    found: Whereabouts
    known: Position
    trims: int
    needs_state: bool

    @classmethod
    def of(cls, known: Position, *, needs_state: bool = False) -> PrefixMatch:
        """Return the match up to `known`.

        With `needs_state`, the match ends at the last state checkpoint.
        """
        at = last_checkpoint(known) if needs_state else known
        return cls(at, whereabouts(at), known, known.node.trims, needs_state)

    def loading(self, load_blocks: int | None) -> PrefixMatch:
        """Shorten the match to the part usable with at most `load_blocks` loaded blocks.

        None means any number. With 0, no recurrent state is loaded either.
        """
        if load_blocks is None:
            return self
        found = self.found
        match = self.first(found.device + found.coming + load_blocks)
        if not self.needs_state or load_blocks:
            return match
        here = last_checkpoint(match.at, on_device=True)
        return PrefixMatch(here, whereabouts(here), self.known, self.trims, self.needs_state)

    def first(self, num_blocks: int) -> PrefixMatch:
        """Shorten the match to its first `num_blocks` blocks, if it has more."""
        if num_blocks >= self.known.num_blocks:
            return self
        return PrefixMatch.of(self.known.cut(num_blocks), needs_state=self.needs_state)

    @property
    def holds(self) -> bool:
        """True if all matched blocks are still in the tree."""
        return self.known.node.attached and self.known.node.trims == self.trims

    @property
    def is_in_place(self) -> bool:
        """True if all matched blocks are in the tree and the last node was not split since."""
        known = self.known
        return self.holds and known.node.start + known.inside == known.num_blocks


def last_checkpoint(at: Position, *, on_device: bool = False) -> Position:
    """Return the end of the last node up to `at` that has a state checkpoint.

    Without a checkpoint, the result is the root's end. With `on_device`, only checkpoints that the
    device has or gets count.
    """
    node = at.node
    if at.within and node.parent is not None:
        node = node.parent
    while node.parent is not None:
        checkpoint = node.checkpoint
        if checkpoint is not None and not (on_device and checkpoint.device_slot is None):
            break
        node = node.parent
    return Position.after(node)


def reachable(at: Position, load_blocks: int | None) -> int:
    """Count the blocks up to `at` that a lease may use with at most `load_blocks` loads.

    None means any number of loads.
    """
    if at.inside <= at.node.edge.num_device:
        return at.num_blocks
    in_order = _states_to(at)
    if not in_order.translate(None, WITHOUT[MOVING]):  # the usual case: loads follow device blocks
        most = at.num_blocks if load_blocks is None else load_blocks + _there(in_order)
        return min(most, at.num_blocks)
    states = np.frombuffer(in_order, np.uint8)
    there = states & (DEVICE | COMING) != 0
    loadable = ~there & (states & MOVING == 0)
    if load_blocks is not None:
        loadable &= np.cumsum(loadable) <= load_blocks
    # Loads end in order. So a loading block that follows a block not being loaded will not arrive.
    gap = there & ~np.logical_and.accumulate(there)
    wrong = np.flatnonzero(~(there | loadable) | gap)
    return int(wrong[0]) if len(wrong) else len(states)


def blocks_before_coming(at: Position) -> int:
    """Count the blocks up to `at` before the first block that is being loaded."""
    if at.inside <= at.node.edge.num_device:
        return at.num_blocks
    coming = np.flatnonzero(np.frombuffer(_states_to(at), np.uint8) & COMING)
    return int(coming[0]) if len(coming) else at.num_blocks


def to_load(at: Position) -> int:
    """Count the blocks up to `at` that are neither on the device nor being loaded."""
    if at.inside <= at.node.edge.num_device:
        return 0
    return at.num_blocks - _there(_states_to(at))


def _there(states: bytes) -> int:
    return len(states.translate(None, WITHOUT[DEVICE | COMING]))


def _states_to(at: Position) -> bytes:
    before = [node.edge.states_of(0, node.edge.num_blocks) for node in at.node.way_up()][1:]
    return b"".join([*reversed(before), at.node.edge.states_of(0, at.inside)])
