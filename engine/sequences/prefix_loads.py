"""The choice of how much of a sequence's prefix to load from lower tiers, and counts by tier.

The remaining prefix is computed again. The choice is made once for each lease.
"""

from __future__ import annotations

from engine.copies import TierCopies
from engine.link.stats.tier_stats import StateTier, TierTokens
from engine.sequences.sequence import Sequence
from prefix_cache.cache import PrefixCache
from prefix_cache.leases.lease import Lease
from prefix_cache.leases.load_or_recompute import LOWER, NO_QUEUE, LoadOrRecompute, Queue
from prefix_cache.tree.match import PrefixMatch, Whereabouts
from storage.move import DISK_TIER, HOST_TIER


class PrefixLoads:
    """The choice of loads, by the measured rates of copying and of computing."""

    def __init__(self, cache: PrefixCache, copies: TierCopies, rates: LoadOrRecompute) -> None:
        self._cache = cache
        self._copies = copies
        self._rates = rates

    def most_blocks(self, sequence: Sequence, match: PrefixMatch, before: int) -> int | None:
        """Return the maximum number of blocks to load from lower tiers.

        None means all blocks and the recurrent state. `before` is the number of tokens that will be
        computed before those of the sequence.
        """
        found = match.found
        if not sequence.use_cache or not _is_lower(found):
            return 0
        if self._cache.quotas.are_partitions:
            queue = NO_QUEUE  # with partitions, a flow's decision must not depend on other flows
        else:
            queue = Queue(before, {tier: self._copies.up_from(tier) for tier in LOWER})
        asked = sequence.num_tokens, queue, sequence.loads, sequence.flow
        if not match.needs_state:
            return self._rates.load_blocks(found, *asked)
        without = match.loading(0).at.num_blocks
        return None if self._rates.loads_state(found, without, *asked) else 0

    def count(self, sequence: Sequence, lease: Lease, found: Whereabouts) -> None:
        """Count the cached tokens of a new lease, by the tiers in which they were found."""
        size, loaded = self._cache.block_size, 0
        if sequence.use_cache and _is_lower(found):
            loaded = max(lease.num_shared - found.device - found.coming, 0)
            is_whole = lease.num_shared >= found.total
            self._rates.count(found, loaded, sequence.flow, has_state=is_whole)
        if sequence.admitted is None:
            cached = min(lease.cached_tokens, sequence.prompt_len)
            host = min(loaded, found.host)
            disk = loaded - host
            sequence.found = TierTokens(cached - loaded * size, host * size, disk * size)
            if sequence.use_cache and lease.num_shared >= found.total:
                sequence.state_tier = state_tier(found, sequence.found)
            if lease.states is not None and lease.states.matched > cached:
                sequence.matched = lease.states.matched
        for writer, blocks in lease.first_reads.items():
            sequence.first_reads[writer] = sequence.first_reads.get(writer, 0) + blocks * size


def state_tier(found: Whereabouts, tokens: TierTokens) -> StateTier | None:
    """Return the lower tier that had only the recurrent state of a prefix, not its `tokens`."""
    if found.state is HOST_TIER and not tokens.host:
        return "host"
    if found.state is DISK_TIER and not tokens.disk:
        return "disk"
    return None


def _is_lower(found: Whereabouts) -> bool:
    return found.host + found.disk > 0 or found.state is not None
