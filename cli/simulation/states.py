"""The recurrent states of a simulated model: their slots, and the rows of a replay.

As in the engine, a row of a sequence ends where a state is kept. The cache keeps the states, and
this module only makes the rows. Answers are not replayed, so no state is kept at their ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cli.plan.decoder import DecoderCounts
from engine.startup.memory.pool_size import PoolBudget, StateSizes, state_slots
from engine.startup.memory.pool_size import cache_ratio as ratio_of
from prefix_cache.cache import PrefixCache
from prefix_cache.leases.checkpoint_positions import prompt_positions
from prefix_cache.leases.lease import Lease


@dataclass(frozen=True, slots=True)
class StateCosts:
    """The bytes of a model's recurrent state, and the share of memory that states get."""

    state_bytes: int
    kv_bytes_per_token: int
    cache_ratio: float

    def slots(self, device_tokens: int) -> int:
        """Count the device's state slots, including the slots of one running sequence."""
        sizes = StateSizes(self.state_bytes, 1, self.cache_ratio)
        return state_slots(PoolBudget(0, ""), device_tokens * self.kv_bytes_per_token, sizes)

    def state_blocks(self, block_size: int) -> int:
        """Count the blocks of `block_size` tokens that have room for a recurrent state."""
        return -(-self.state_bytes // (block_size * self.kv_bytes_per_token))

    def below(self, num_blocks: int, block_size: int) -> int:
        """Count the recurrent states that a lower tier has beside `num_blocks` blocks of KV."""
        return int(num_blocks * self.cache_ratio) // self.state_blocks(block_size)


@dataclass(frozen=True, slots=True)
class StatesReport:
    """Counts of a replay's checkpoints, which are the recurrent states in the cache."""

    state_bytes: int
    slots: int
    held: int
    made: int
    hits: int
    evicted: int
    refused: int
    # number of cached tokens that were computed again for lack of a recurrent state
    cut_tokens: int


def state_costs(decoder: DecoderCounts, cache_ratio: float) -> StateCosts | None:
    """Return the costs of a model's states, if it has recurrent layers."""
    states = decoder.states
    if states is None:
        return None
    per_token = decoder.block_bytes_per_token
    return StateCosts(states.state_bytes, per_token, ratio_of(cache_ratio, states, per_token))


def states_report(cache: PrefixCache, state_bytes: int, block_size: int) -> StatesReport:
    """Report on a simulated cache's checkpoints. Each token id stands for `block_size` tokens."""
    kept, counts = cache.checkpoints, cache.checkpoints.counts
    return StatesReport(
        state_bytes=state_bytes,
        slots=kept.device.usage.total,
        held=kept.device.num_kept,
        made=counts.made,
        hits=counts.hits,
        evicted=counts.evicted,
        refused=counts.refused,
        cut_tokens=counts.cut_tokens * block_size,
    )


def rows(cache: PrefixCache, lease: Lease, length: int, block_size: int) -> Iterator[int]:
    """Launch the rows of a prompt of `length` ids, and yield the end of each row.

    Each id stands for `block_size` tokens. The caller commits the ids up to this end before it
    takes the next row.
    """
    states, at = lease.states, lease.cached_tokens
    wanted = prompt_positions(lease, length, unit=block_size)
    cache.states.want(lease, wanted)
    while at < length:
        if states is None:
            at = length
        else:
            at = states.row_end(at, length, is_cut=False)
            cache.states.launched(lease, at, states.next_out())
        yield at
