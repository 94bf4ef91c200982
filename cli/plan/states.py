"""The states of recurrent layers: the bytes of one, and how many fit the device.

free bytes    states of running sequences | KV | cached states, for each byte of KV a part
"""

from dataclasses import dataclass

from cli.plan.decoder import BLOCK_SIZE, DecoderCounts
from cli.plan.units import gib
from engine.config import CacheSettings, StepSettings
from engine.models.errors import PoolTooSmall
from engine.startup.pool_size import PoolBudget, StateSizes, pool_sizes
from storage.move import FIRST_SLOT
from storage.state_layout import StateLayout


@dataclass(frozen=True, slots=True)
class StateFit:
    """States on the device beside `device_tokens` of KV, with the defaults of `ratoon serve`."""

    layers: int  # recurrent layers
    state_bytes: int
    as_kv_tokens: int  # tokens whose KV takes as many bytes as one state
    device_states: int  # states that fit, of running sequences and cached


def divided(decoder: DecoderCounts, states: StateLayout, free_bytes: float) -> tuple[int, int]:
    """Return the tokens of KV and the states that fit so many bytes; 0 where not one block does."""
    sizes = StateSizes(
        states.state_bytes, StepSettings().max_running, CacheSettings().state_cache_ratio
    )
    try:
        found = pool_sizes(PoolBudget(int(free_bytes), ""), decoder.kv.block_bytes, sizes)
    except PoolTooSmall:
        return 0, 0
    return found.num_blocks * BLOCK_SIZE, found.num_states - FIRST_SLOT


def state_fit(decoder: DecoderCounts, device_bytes: float) -> StateFit | None:
    """Count the states that fit so many bytes; None for a model without recurrent layers."""
    states = decoder.states
    if states is None:
        return None
    return StateFit(
        layers=len(states.layers),
        state_bytes=states.state_bytes,
        as_kv_tokens=-(-states.state_bytes // decoder.kv_bytes_per_token),
        device_states=divided(decoder, states, device_bytes)[1],
    )


def state_line(fit: StateFit, layers: int) -> str:
    """Describe the states for people."""
    return (
        f"{fit.layers} of {layers} layers are recurrent: a state takes {gib(fit.state_bytes)}, as "
        f"much as the KV of {fit.as_kv_tokens:,} tokens. {fit.device_states:,} fit the device, "
        "three of each running sequence, the others as checkpoints in the cache."
    )
