"""The lease of each sequence on KV blocks.

    look_up -> take -> [loading] -> (grow, commit)* -> give_back | discard

Elsewhere: the sequences that wait for blocks of others (`held_back`), and the loads of prefixes
from lower tiers (`prefix_loads`).
"""

from __future__ import annotations

from collections import Counter
from itertools import count

from engine.copies import TierCopies
from engine.sequences.held_back import HeldBack
from engine.sequences.prefix_loads import PrefixLoads
from engine.sequences.sequence import Sequence
from prefix_cache.cache import PrefixCache
from prefix_cache.leases.checkpoint_positions import prompt_positions
from prefix_cache.leases.lease import Lease
from prefix_cache.leases.load_or_recompute import LoadOrRecompute
from prefix_cache.tree.match import PrefixMatch
from storage.move import TokenCopy


class LeaseMissing(RuntimeError):
    """An error of the engine: a sequence without a lease would use blocks."""


class SequenceCache:
    """The engine's use of the prefix cache. Used by one thread only."""

    def __init__(
        self,
        cache: PrefixCache,
        copies: TierCopies,
        rates: LoadOrRecompute,
        *,
        single_flight_deadline_s: float,
    ) -> None:
        self._cache = cache
        self._loads = PrefixLoads(cache, copies, rates)
        self._held_back = HeldBack(cache, single_flight_deadline_s)
        self._lease_ids = count(1)

    @property
    def copies_under_way(self) -> bool:
        """True if a sequence may be able to start when running copies between tiers end."""
        return len(self._cache.in_flight) > 0

    def look_up(self, sequence: Sequence, now: float, before: int = 0) -> int | None:
        """Return the number of cached tokens of a waiting sequence, or None if it must wait.

        `before` is the number of tokens that will be computed before those of the sequence.
        """
        if sequence.is_unready:
            return None
        if not sequence.use_cache:
            return 0
        match = self._match(sequence)
        usable = match.loading(self._loads.most_blocks(sequence, match, before)).at
        cached = usable.num_blocks * self._cache.block_size
        return None if self._held_back.is_held(sequence, cached, now) else cached

    def take(self, sequence: Sequence, now: float, before: int = 0) -> bool:
        """Lease blocks for all of the sequence's tokens.

        If this is not possible now, return False and change nothing. After a success, the sequence
        may have to wait for loads (`Lease.ready`).
        """
        if not self._cache.is_kept(sequence.flow) or not self._lease_modules(sequence, now):
            return False
        size, modules = self._cache.block_size, sequence.modules
        match = self._match(sequence).first((sequence.num_tokens - 1) // size)
        found, loads = match.found, self._loads.most_blocks(sequence, match, before)
        lease = self._cache.acquire(
            sequence.path,
            sequence.token_ids,
            owner=sequence.flow,
            now=now,
            shares=sequence.use_cache,
            load_blocks=loads,
            writer=sequence.writer,
            match=match,
        )
        if lease is None:
            if modules is not None:
                modules.release(self._cache, now)
            return False
        if modules is not None:  # tokens copied from modules count as cached
            lease.cached_tokens = max(lease.cached_tokens, modules.copied_tokens)
        self._want_states(sequence, lease)
        # With a constraint, a left-out row would need the old recurrent state.
        if sequence.constraint is None:
            self._cache.states.let_start_over(lease)
        self._loads.count(sequence, lease, found)
        sequence.hold(lease, next(self._lease_ids))
        sequence.num_computed = lease.cached_tokens
        if sequence.use_cache:
            self._held_back.begin(sequence, lease.cached_tokens)
        return True

    def _lease_modules(self, sequence: Sequence, now: float) -> bool:
        """Lease a sequence's prompt modules.

        Return False if a module is gone, or if there is no room for the sequence's own blocks. Call
        before leasing the own blocks, because leasing may evict modules.
        """
        modules = sequence.modules
        if modules is None:
            return True
        if self.lacking(sequence) > self._cache.capacity.obtainable:
            return False
        return modules.lease(self._cache, sequence.flow, now)

    def copies(self, sequence: Sequence) -> tuple[TokenCopy, ...]:
        """Return the copies of module tokens to the own blocks of a sequence that starts."""
        modules, lease = sequence.modules, lease_of(sequence)
        if modules is None:
            return ()
        size = self._cache.block_size
        return modules.copies(lease.blocks, lease.num_shared * size, size)

    def grow(self, sequence: Sequence, now: float, drafts: int = 0) -> bool:
        """Lease blocks for all known and pending tokens and `drafts` further tokens.

        If this is not possible now, return False and change nothing.
        """
        lease, length = lease_of(sequence), sequence.length + drafts
        if length <= lease.num_blocks * self._cache.block_size:
            return True
        return self._cache.extend(lease, length, now=now)

    def lacking(self, sequence: Sequence) -> int:
        """Count the blocks that a sequence still needs for its tokens."""
        if sequence.lease is not None:
            held = sequence.lease.num_blocks
        else:
            match = sequence.match
            held = 0 if match is None or not sequence.use_cache else match.found.device
        return max(self._cache.blocks_for(sequence.length) - held, 0)

    def is_room_coming(self, sequence: Sequence) -> bool:
        """Return whether a sequence's missing blocks are free, or will be after running copies."""
        return self._cache.capacity.is_coming(self.lacking(sequence))

    def is_short_of_states(self) -> bool:
        """Return whether no sequence can start, because running sequences hold all state slots."""
        return self._cache.tree.needs_state and self._cache.states.is_short()

    def in_use(self) -> Counter[str]:
        """Count the device blocks that each flow's sequences use."""
        return self._cache.in_use()

    def part(self, flow: str) -> int:
        """Return a flow's part: the number of device blocks that it may take back from others."""
        return self._cache.quotas.part(flow)

    @property
    def are_partitions(self) -> bool:
        """True if every flow has its own part of the device."""
        return self._cache.quotas.are_partitions

    def runs_alone(self, sequence: Sequence) -> bool:
        """Return whether a sequence needs more blocks than its flow's part plus the shared room."""
        blocks = self._cache.blocks_for(sequence.length)
        return self._cache.quotas.runs_alone(sequence.flow, blocks)

    def commit(
        self, sequence: Sequence, start: int, end: int, now: float, *, is_written: bool = True
    ) -> None:
        """Put into the tree the blocks that are complete with the tokens `start` to `end`.

        `is_written` is False if the tokens were fetched. The blocks end before the sequence's last
        token, so no running step writes to them.
        """
        first, last = start // self._cache.block_size, end // self._cache.block_size
        if not sequence.use_cache or first == last:
            return
        lease = lease_of(sequence)
        self._cache.commit(
            lease,
            sequence.token_ids,
            end,
            sequence.block_keys,
            now=now,
            is_written=is_written,
        )
        self._held_back.committed(sequence, lease, first, last, end)

    def launched(self, sequence: Sequence, end: int, state_slot: int) -> None:
        """Record that a launched row writes the recurrent state at `end` to `state_slot`."""
        self._cache.states.launched(lease_of(sequence), end, state_slot)

    def has_states(self, sequence: Sequence) -> bool:
        """Return whether the model has recurrent layers."""
        return lease_of(sequence).states is not None

    def verified(self, sequence: Sequence, end: int) -> int:
        """Return the position from which to continue, after tokens were verified up to `end`.

        With recurrent layers, it is the position of the newest state without rejected tokens.
        """
        lease = lease_of(sequence)
        return end if lease.states is None else self._cache.states.verified(lease, end)

    def is_overwritten(self, sequence: Sequence) -> bool:
        """Return whether the last launched row has overwritten the recurrent state that it read."""
        states = lease_of(sequence).states
        return states is not None and states.is_overwritten

    def left_out(self, sequence: Sequence) -> bool:
        """Take a sequence back to the recurrent state before its last row.

        Return False, and do nothing, for a sequence without recurrent states.
        """
        lease = lease_of(sequence)
        if lease.states is None:
            return False
        self._cache.states.left_out(lease)
        return True

    def retain(self, sequence: Sequence, now: float) -> None:
        """Retain the marked parts of a sequence's prompt, and count the tokens written for them.

        The prompt must have been committed. Tokens that were cached before do not count.
        """
        size, lease, start, written = self._cache.block_size, lease_of(sequence), 0, []
        runs = _merged([*sequence.added, *lease.added()])
        for mark in sequence.marks:
            end = mark.num_tokens // size * size
            if sequence.use_cache:
                marked = sequence.token_ids[:end]
                self._cache.retain(lease, marked, mark.seconds, now=now)
            first = max(start, sequence.found.total, sequence.fetched_end)
            tokens = (min(last * size, end) - max(begin * size, first) for begin, last in runs)
            written.append(sum(max(count, 0) for count in tokens))
            start = max(start, end)
        sequence.written = tuple(written)

    def keep_out(self, sequence: Sequence) -> None:
        """Never commit blocks of this sequence again. It may still use its blocks."""
        sequence.use_cache = False
        self._held_back.end(sequence)
        if sequence.lease is not None:
            self._cache.keep_out(sequence.lease)

    def give_back(self, sequence: Sequence, now: float) -> None:
        """Release the lease. Committed blocks stay in the tree."""
        self._cache.release(lease_of(sequence), now=now)
        self._leave(sequence, now)

    def discard(self, sequence: Sequence, now: float) -> None:
        """Release the lease, and remove the sequence's committed blocks from the tree."""
        self._cache.discard(lease_of(sequence), now=now)
        self._leave(sequence, now)

    def _match(self, sequence: Sequence) -> PrefixMatch:
        sequence.match = self._cache.tree.match(sequence.path, sequence.token_ids, sequence.match)
        return sequence.match

    def _want_states(self, sequence: Sequence, lease: Lease) -> None:
        marks = (mark.num_tokens for mark in sequence.marks)
        positions = prompt_positions(
            lease, sequence.prompt_len, marks=marks, question=sequence.question
        )
        self._cache.states.want(lease, positions)

    def _leave(self, sequence: Sequence, now: float) -> None:
        if sequence.modules is not None:
            sequence.modules.release(self._cache, now)
        self._held_back.end(sequence)
        if sequence.marks:
            sequence.added += lease_of(sequence).added()
        sequence.written_tokens += lease_of(sequence).num_written * self._cache.block_size
        sequence.let_go()


def lease_of(sequence: Sequence) -> Lease:
    """Return the lease of a running sequence. Raises LeaseMissing."""
    if sequence.lease is None:
        raise LeaseMissing(f"sequence {sequence.request_id} holds no blocks")
    return sequence.lease


def _merged(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge overlapping runs. They overlap if evicted blocks were added again."""
    merged, reached = [], 0
    for start, end in sorted(runs):
        if end > reached:
            merged.append((max(start, reached), end))
            reached = end
    return merged
