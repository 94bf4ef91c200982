"""The pools of a model's KV and recurrent states: their sizes, and their allocation."""

from __future__ import annotations

import logging

import torch

from engine.config import EngineConfig
from engine.models.errors import PoolTooSmall
from engine.models.forward.decoder import Decoder
from engine.offload.placement import GIB
from engine.startup.device import free_bytes
from engine.startup.memory.activation import StepBounds, activation_bytes
from engine.startup.memory.enough_memory import warn_of_little_room
from engine.startup.memory.pool_size import (
    PoolBudget,
    PoolSizes,
    StateSizes,
    blocks_for_tokens,
    budget_on_cpu,
    budget_on_cuda,
    cache_ratio,
    pool_sizes,
    scratch_blocks,
    state_slots,
)
from engine.startup.metadata import ModelMetadata
from engine.startup.model_runner import sharing_rule
from prefix_cache.tiers.checkpoints import ANSWER_SLOTS, SEQUENCE_SLOTS
from storage.errors import PoolDoesNotFit
from storage.layouts.kv_layout import KvLayout
from storage.layouts.window_layout import WindowLayout
from storage.pools.device_pool import DevicePool
from storage.pools.state_pool import StatePool
from storage.pools.window_pool import WindowPool

_log = logging.getLogger(__name__)


def step_bounds(config: EngineConfig, metadata: ModelMetadata) -> StepBounds:
    """Return the limits of future steps, which are known before the pool's size."""
    sharing = sharing_rule(config, metadata.part, metadata.layout, metadata.device)
    return StepBounds(
        batch_tokens=metadata.batch_tokens if config.cache.cache_tokens is None else 0,
        max_running=config.steps.max_running,
        max_model_len=min(metadata.model_len, config.cache.cache_tokens or metadata.model_len),
        layout=metadata.layout,
        graph_tokens=config.steps.graph_tokens,
        group_rows=0 if sharing is None else sharing.most_rows,
        states=metadata.states,
    )


def open_pool(
    layout: KvLayout, num_blocks: int, device: torch.device, layerwise_bytes: int
) -> DevicePool:
    """Allocate the pool of blocks. Raises PoolTooSmall if the device has too little memory."""
    try:
        return DevicePool(layout, num_blocks, device, layerwise_bytes)
    except PoolDoesNotFit as error:
        raise PoolTooSmall(str(error)) from error


def open_state_pool(
    config: EngineConfig, metadata: ModelMetadata, num_slots: int
) -> StatePool | WindowPool | None:
    """Allocate the pool of states or windows, if the model has any. Raises PoolTooSmall."""
    layout = metadata.states
    if layout is None:
        return None
    given = num_slots, metadata.device, metadata.layout.block_bytes
    states: StatePool | WindowPool
    try:
        if isinstance(layout, WindowLayout):
            states = WindowPool(layout, *given, _scratch_blocks(config, metadata))
        else:
            states = StatePool(layout, *given)
    except PoolDoesNotFit as error:
        raise PoolTooSmall(str(error)) from error
    what = "states" if metadata.rings is None else "windows"
    _log.info("%d %s of %.1f MiB", num_slots, what, layout.state_bytes / 2**20)
    return states


def _scratch_blocks(config: EngineConfig, metadata: ModelMetadata) -> int:
    most = config.steps.max_running
    return scratch_blocks(metadata.batch_tokens, most, config.cache.block_size)


def sizes_of_pools(config: EngineConfig, decoder: Decoder, metadata: ModelMetadata) -> PoolSizes:
    """Return how many blocks and recurrent states fit in addition to weights and activations."""
    block_bytes, states = metadata.layout.block_bytes, _state_sizes(config, metadata)
    if config.cache.cache_tokens is None:
        return pool_sizes(_budget(config, decoder, metadata), block_bytes, states)
    num_blocks = blocks_for_tokens(config.cache.cache_tokens, config.cache.block_size)
    kv_bytes = num_blocks * block_bytes
    if metadata.device.type == "cpu":
        warn_of_little_room(kv_bytes)
        beside = _cpu_budget(config, metadata)
    else:  # without measuring: the memory outside the fraction must suffice for steps
        free = int(free_bytes(metadata.device) * config.cache.memory_fraction)
        beside = PoolBudget(free - kv_bytes, f"{free} bytes free")
    return PoolSizes(num_blocks, state_slots(beside, kv_bytes, states))


def _state_sizes(config: EngineConfig, metadata: ModelMetadata) -> StateSizes | None:
    if metadata.states is None:
        return None
    layout, rings = metadata.layout, metadata.rings
    state_bytes, scratch = metadata.state_blocks * layout.block_bytes, 0
    if rings is not None:
        scratch = rings.scratch_slots(_scratch_blocks(config, metadata)) * state_bytes
    ratio = cache_ratio(config.cache.state_cache_ratio, metadata.states, layout.token_bytes)
    slots = ANSWER_SLOTS if rings is None else SEQUENCE_SLOTS
    return StateSizes(state_bytes, config.steps.max_running, ratio, scratch, slots)


def _cpu_budget(config: EngineConfig, metadata: ModelMetadata) -> PoolBudget:
    free = free_bytes(torch.device("cpu"), config.process.host_memory_bytes)
    return budget_on_cpu(int(free * metadata.share))


def _budget(config: EngineConfig, decoder: Decoder, metadata: ModelMetadata) -> PoolBudget:
    device = metadata.device
    if device.type == "cpu":
        return _cpu_budget(config, metadata)
    free, weights = free_bytes(device), decoder.parameters.num_bytes
    activations = activation_bytes(decoder, step_bounds(config, metadata))
    _log.info(
        "device memory: %.1f GiB of weights, %.1f for a step of %d tokens, %.1f free",
        *(weights / GIB, activations / GIB, metadata.batch_tokens, free / GIB),
    )
    return budget_on_cuda(
        free=free,
        weights=weights,
        activations=activations,
        fraction=config.cache.memory_fraction,
    )
