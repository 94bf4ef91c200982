"""What sequences hold of the cache: a lease each, and the right to be the one that computes.

    look_up -> take -> (grow, commit)* -> give_back | discard

Single flight: a sequence whose next block is being computed by another under the same namespace
is held back until that block is in the tree, or its deadline has passed. So N cold requests for
one prefix compute it once.

Knows: leases and block keys of sequences. Does not know: whose turn it is (`queue.py`), budgets
(`scheduler.py`), or which blocks go when room is needed (`prefix_cache`).
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.sequence import Sequence
from prefix_cache.cache import PrefixCache
from prefix_cache.flight import SingleFlight
from prefix_cache.lease import Lease

KEY_BYTES = 16


class LeaseMissing(RuntimeError):
    """A sequence was to use blocks that it does not hold: a defect of the engine."""


class Holdings:
    """The engine's use of the prefix cache. One owner thread."""

    def __init__(
        self, cache: PrefixCache, flight: SingleFlight, *, single_flight_deadline_s: float
    ) -> None:
        self._cache = cache
        self._flight = flight
        self._deadline_s = single_flight_deadline_s

    def look_up(self, sequence: Sequence, now: float) -> int | None:
        """Cached tokens a waiting sequence would start from; None while it is held back."""
        if not sequence.use_cache:
            return 0
        cached = self._cache.match_length(sequence.path, sequence.token_ids)
        if self._is_held_back(sequence, cached, now):
            return None
        return cached

    def take(self, sequence: Sequence, now: float) -> bool:
        """Lease blocks for all of the sequence's tokens; False: not now, nothing changed."""
        lease = self._cache.acquire(
            sequence.path,
            sequence.token_ids,
            owner=sequence.flow,
            now=now,
            shares=sequence.use_cache,
        )
        if lease is None:
            return False
        sequence.lease = lease
        sequence.num_computed = lease.cached_tokens
        if sequence.use_cache:
            first = lease.cached_tokens // self._cache.block_size
            self._flight.begin(sequence, _prompt_keys(sequence, first))
        return True

    def grow(self, sequence: Sequence, now: float) -> bool:
        """Make room for all tokens, pending ones too; False: not now, nothing changed."""
        lease, length = lease_of(sequence), sequence.length
        if length <= lease.num_blocks * self._cache.block_size:
            return True
        return self._cache.extend(lease, length, now=now)

    def commit(self, sequence: Sequence, start: int, end: int, now: float) -> None:
        """Share the whole blocks that computing tokens `start` to `end` has completed.

        All of them are known by now, and the blocks lie before the sequence's last token: a
        step that is still on its way for a sequence that ends writes behind them.
        """
        first, last = start // self._cache.block_size, end // self._cache.block_size
        if not sequence.use_cache or first == last:
            return
        self._cache.commit(
            lease_of(sequence), sequence.token_ids, end, sequence.block_keys, now=now
        )
        self._flight.done(sequence, _prompt_keys(sequence, first, last))

    def give_back(self, sequence: Sequence, now: float) -> None:
        """Release the lease; what was committed stays in the tree."""
        self._cache.release(lease_of(sequence), now=now)
        self._leave(sequence)

    def discard(self, sequence: Sequence, now: float) -> None:
        """Release the lease, and forget every block that the sequence put in the tree."""
        self._cache.discard(lease_of(sequence), now=now)
        self._leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        self._flight.end(sequence)
        sequence.lease = None
        sequence.num_computed = sequence.num_pending = 0

    def _is_held_back(self, sequence: Sequence, cached: int, now: float) -> bool:
        key = next(_prompt_keys(sequence, cached // self._cache.block_size), None)
        if key is None or not self._flight.is_held(key):
            return False
        if sequence.held_since is None:
            sequence.held_since = now
        return now - sequence.held_since < self._deadline_s


def lease_of(sequence: Sequence) -> Lease:
    """The lease of a running sequence; raises LeaseMissing when it has none."""
    if sequence.lease is None:
        raise LeaseMissing(f"sequence {sequence.request_id} holds no blocks")
    return sequence.lease


def _prompt_keys(sequence: Sequence, first: int, last: int | None = None) -> Iterator[bytes]:
    """Keys of the prompt's whole blocks `first` up to, not including, `last` (None: all)."""
    keys = sequence.block_keys
    end = len(keys) if last is None else min(last * KEY_BYTES, len(keys))
    for at in range(first * KEY_BYTES, end, KEY_BYTES):
        yield keys[at : at + KEY_BYTES]
