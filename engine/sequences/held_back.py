"""Single flight: sequences wait for KV blocks that another sequence of the namespace computes.

One sequence computes a new block, and other sequences of the namespace that need the block wait.
The wait ends when the block is in the tree, or at a deadline. N requests for the same uncached
prefix therefore compute the prefix once. With recurrent layers, a block is useful only with a
recurrent state at its end. The computing sequence therefore stores a state at the position where a
waiting sequence's tokens differ.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from engine.sequences.sequence import Sequence
from prefix_cache.cache import PrefixCache
from prefix_cache.hashing import KEY_BYTES
from prefix_cache.leases.lease import Lease
from prefix_cache.leases.single_flight import SingleFlight
from prefix_cache.tree.edge import common_prefix
from prefix_cache.tree.match import last_checkpoint
from prefix_cache.tree.node import Position


class HeldBack:
    """The blocks being computed, and the sequences that wait for them."""

    def __init__(self, cache: PrefixCache, deadline_s: float) -> None:
        """Let sequences wait for at most `deadline_s` seconds."""
        self._cache = cache
        self._single_flight = SingleFlight[Sequence]()
        self._deadline_s = deadline_s

    def is_held(self, sequence: Sequence, cached: int, now: float) -> bool:
        """Return whether a sequence must wait: another computes its block after `cached` tokens."""
        key = next(_prompt_keys(sequence, cached // self._cache.block_size), None)
        holder = None if key is None else self._single_flight.holder_of(key)
        if holder is None:
            return False
        if sequence.held_since is None:
            sequence.held_since = now
            self._want_state_of(sequence, holder)
        return now - sequence.held_since < self._deadline_s

    def begin(self, sequence: Sequence, cached: int) -> None:
        """Record that a sequence computes the blocks of its prompt after `cached` tokens."""
        first = cached // self._cache.block_size
        self._single_flight.begin(sequence, _prompt_keys(sequence, first))

    def committed(self, sequence: Sequence, lease: Lease, first: int, last: int, end: int) -> None:
        """Let no sequence wait any more for the blocks `first` up to `last`, now in the tree."""
        if lease.states is None:
            self._single_flight.done(sequence, _prompt_keys(sequence, first, last))
        elif lease.states.stop_after(end) is None:
            self._single_flight.end(sequence)
        else:  # no state here: other sequences wait for the next state
            last = last_checkpoint(Position.after(lease.node)).num_blocks
            self._single_flight.done(sequence, _prompt_keys(sequence, 0, last))

    def end(self, sequence: Sequence) -> None:
        """Let no other sequence wait for `sequence` any more."""
        self._single_flight.end(sequence)

    def _want_state_of(self, sequence: Sequence, holder: Sequence) -> None:
        """Make `holder` store its recurrent state where the waiting `sequence` diverges from it."""
        if holder.lease is None or holder.lease.states is None:
            return
        mine, theirs = (np.frombuffer(one.block_keys, np.int32) for one in (sequence, holder))
        same = common_prefix(mine, theirs) * mine.itemsize // KEY_BYTES * self._cache.block_size
        self._cache.states.want(holder.lease, [min(same, sequence.num_tokens - 1)])


def _prompt_keys(sequence: Sequence, first: int, last: int | None = None) -> Iterator[bytes]:
    keys = sequence.block_keys
    end = len(keys) if last is None else min(last * KEY_BYTES, len(keys))
    for at in range(first * KEY_BYTES, end, KEY_BYTES):
        yield keys[at : at + KEY_BYTES]
