"""The states of recurrent layers, or freed attention windows: their bytes, and how many fit.

device's free bytes    states of running sequences | KV | cached states, in proportion to KV
lower tiers                                          KV | cached states, in proportion to KV
"""

from dataclasses import dataclass

from cli.plan.decoder import BLOCK_SIZE, DecoderCounts
from cli.plan.units import gib
from engine.config import CacheSettings, StepSettings
from engine.models.errors import PoolTooSmall
from engine.startup.memory.pool_size import (
    CUDA_BATCH_TOKENS,
    PoolBudget,
    PoolSizes,
    StateSizes,
    below,
    cache_ratio,
    pool_sizes,
    scratch_blocks,
)
from prefix_cache.tiers.checkpoints import ANSWER_SLOTS, SEQUENCE_SLOTS
from storage.layouts.window_layout import SlotLayout, WindowLayout
from storage.move import FIRST_SLOT


@dataclass(frozen=True, slots=True)
class StateFit:
    """The recurrent states that fit beside each tier's KV, by `ratoon serve`'s defaults."""

    layers: int
    state_bytes: int
    as_kv_tokens: int
    device_states: int
    host_states: int = 0
    disk_states: int = 0
    # number of tokens that fit if no window is freed; None: no layer has a window
    tokens_kept_whole: int | None = None


def divided(decoder: DecoderCounts, states: SlotLayout, free_bytes: float) -> tuple[int, int]:
    """Return how many tokens of KV and how many recurrent states fit in `free_bytes`.

    Both numbers are 0 if no KV block fits.
    """
    block_bytes, most = decoder.kept.kv.block_bytes, StepSettings().max_running
    slot_bytes, scratch, slots = states.blocks(block_bytes) * block_bytes, 0, ANSWER_SLOTS
    if isinstance(states, WindowLayout):
        blocks = scratch_blocks(CUDA_BATCH_TOKENS, most, BLOCK_SIZE)
        scratch, slots = states.scratch_slots(blocks) * slot_bytes, SEQUENCE_SLOTS
    sizes = StateSizes(slot_bytes, most, _ratio(decoder), scratch, slots)
    try:
        found = pool_sizes(PoolBudget(int(free_bytes), ""), block_bytes, sizes)
    except PoolTooSmall:
        return 0, 0
    return found.num_blocks * BLOCK_SIZE, found.num_states - FIRST_SLOT


def divided_below(decoder: DecoderCounts, num_bytes: float) -> PoolSizes:
    """Return how many KV blocks and recurrent states fit in `num_bytes` of a lower tier."""
    block_bytes, states = decoder.kept.kv.block_bytes, decoder.states
    state_blocks = 0 if states is None else states.blocks(block_bytes)
    return below(int(num_bytes / block_bytes), state_blocks, _ratio(decoder))


def _ratio(decoder: DecoderCounts) -> float:
    usual = CacheSettings().state_cache_ratio
    return cache_ratio(usual, decoder.states, decoder.block_bytes_per_token)


def state_fit(
    decoder: DecoderCounts, device_bytes: float, host_bytes: float, disk_bytes: float
) -> StateFit | None:
    """Count the recurrent states that fit each tier's bytes, if the model has any."""
    states = decoder.states
    if states is None:
        return None
    whole = int(device_bytes / decoder.kv_bytes_per_token)
    return StateFit(
        layers=states.num_layers,
        state_bytes=states.state_bytes,
        as_kv_tokens=-(-states.state_bytes // decoder.block_bytes_per_token),
        device_states=divided(decoder, states, device_bytes)[1],
        host_states=divided_below(decoder, host_bytes).num_states,
        disk_states=divided_below(decoder, disk_bytes).num_states,
        tokens_kept_whole=whole if isinstance(states, WindowLayout) else None,
    )


def state_line(fit: StateFit, layers: int) -> str:
    """Describe the recurrent states or windows in a sentence."""
    what, slots = "are recurrent: a state takes", "three"
    if fit.tokens_kept_whole is not None:
        slots = "two"
        what = (
            "free what lies before their window with --windows freed (without it "
            f"{fit.tokens_kept_whole:,} tokens fit the device): a window takes"
        )
    return (
        f"{fit.layers} of {layers} layers {what} {gib(fit.state_bytes)}, as "
        f"much as the KV of {fit.as_kv_tokens:,} tokens. {fit.device_states:,} fit the device, "
        f"{slots} of each running sequence, the others as checkpoints in the cache; "
        f"{fit.host_states:,} checkpoints fit the host, {fit.disk_states:,} the disk."
    )
