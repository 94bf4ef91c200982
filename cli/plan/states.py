"""The states of recurrent layers: the bytes of one, and how many fit each tier.

free bytes    states of running sequences | KV | cached states, for each byte of KV a part
below                                       KV | cached states, likewise
"""

from dataclasses import dataclass

from cli.plan.decoder import BLOCK_SIZE, DecoderCounts
from cli.plan.units import gib
from engine.config import CacheSettings, StepSettings
from engine.models.errors import PoolTooSmall
from engine.startup.pool_size import PoolBudget, PoolSizes, StateSizes, below, pool_sizes
from storage.move import FIRST_SLOT
from storage.state_layout import StateLayout


@dataclass(frozen=True, slots=True)
class StateFit:
    """States beside the KV of each tier, with the defaults of `ratoon serve`."""

    layers: int  # recurrent layers
    state_bytes: int
    as_kv_tokens: int  # tokens whose KV takes as many bytes as one state
    device_states: int  # states that fit, of running sequences and cached
    host_states: int = 0
    disk_states: int = 0


def divided(decoder: DecoderCounts, states: StateLayout, free_bytes: float) -> tuple[int, int]:
    """Return the tokens of KV and the states that fit `free_bytes`; 0 where not one block does."""
    block_bytes = decoder.kv.block_bytes
    slot_bytes = states.blocks(block_bytes) * block_bytes
    sizes = StateSizes(slot_bytes, StepSettings().max_running, CacheSettings().state_cache_ratio)
    try:
        found = pool_sizes(PoolBudget(int(free_bytes), ""), block_bytes, sizes)
    except PoolTooSmall:
        return 0, 0
    return found.num_blocks * BLOCK_SIZE, found.num_states - FIRST_SLOT


def divided_below(decoder: DecoderCounts, num_bytes: float) -> PoolSizes:
    """Return the blocks of KV and the states that fit `num_bytes` below the device."""
    block_bytes, states = decoder.kv.block_bytes, decoder.states
    state_blocks = 0 if states is None else states.blocks(block_bytes)
    return below(int(num_bytes / block_bytes), state_blocks, CacheSettings().state_cache_ratio)


def state_fit(
    decoder: DecoderCounts, device_bytes: float, host_bytes: float, disk_bytes: float
) -> StateFit | None:
    """Count the states that fit each tier's bytes; None for a model without recurrent layers."""
    states = decoder.states
    if states is None:
        return None
    return StateFit(
        layers=len(states.layers),
        state_bytes=states.state_bytes,
        as_kv_tokens=-(-states.state_bytes // decoder.kv_bytes_per_token),
        device_states=divided(decoder, states, device_bytes)[1],
        host_states=divided_below(decoder, host_bytes).num_states,
        disk_states=divided_below(decoder, disk_bytes).num_states,
    )


def state_line(fit: StateFit, layers: int) -> str:
    """Describe the states for people."""
    return (
        f"{fit.layers} of {layers} layers are recurrent: a state takes {gib(fit.state_bytes)}, as "
        f"much as the KV of {fit.as_kv_tokens:,} tokens. {fit.device_states:,} fit the device, "
        "three of each running sequence, the others as checkpoints in the cache; "
        f"{fit.host_states:,} checkpoints fit the host, {fit.disk_states:,} the disk."
    )
