"""The opening of a model's runner. On CUDA it has captured graphs for small steps."""

from __future__ import annotations

from dataclasses import replace

import torch

from engine.config import EngineConfig
from engine.execution.block_tables import BlockTables
from engine.execution.graphs.block_tables import DeviceTables
from engine.execution.graphs.capture import cuda_capture
from engine.execution.graphs.runner import GraphRunner
from engine.execution.graphs.steps import CaptureContext, CapturedSteps
from engine.execution.rings import Rings
from engine.execution.runner import ModelRunner
from engine.execution.shared_prefixes import MIN_GROUP_ROWS, SharedPrefixes, SharingRule
from engine.models.config import ModelConfig
from engine.models.forward.decoder import Decoder
from engine.sampling.sampler import Sampler
from engine.startup.timed import timed
from engine.step import Runner
from kernels.attention.decode.split_sizes import split_sizes
from kernels.attention.tuning import LEAST_SHARED_TOKENS, rows_together
from storage.layouts.kv_layout import KvLayout
from storage.pools.device_pool import DevicePool, Mover
from storage.pools.state_pool import StatePool
from storage.pools.window_pool import WindowPool


def sharing_rule(
    config: EngineConfig, model: ModelConfig, layout: KvLayout, device: torch.device
) -> SharingRule | None:
    """Return the rule by which decodes share reads of a prefix. None: never, as on a CPU."""
    least = config.steps.least_shared_tokens
    if least is None:
        least = LEAST_SHARED_TOKENS
    if not all(one.kept.has_values for one in model.attentions):
        return None  # with latents, rows cannot share reads
    most_rows = min(rows_together(one.num_heads // one.kept.heads) for one in model.attentions)
    if device.type == "cpu" or not least or most_rows < MIN_GROUP_ROWS:
        return None
    token_bytes = layout.token_bytes // layout.num_layers
    return SharingRule(config.cache.block_size, token_bytes, least, most_rows)


def open_runner(
    config: EngineConfig,
    decoder: Decoder,
    sampler: Sampler,
    pool: DevicePool,
    sharing: SharingRule | None,
    *,
    max_model_len: int,
    states: StatePool | WindowPool | None = None,
) -> Runner:
    """Open a runner of `decoder` on `pool`, for sequences of at most `max_model_len` tokens.

    `states` is the pool of recurrent states or ring buffers, if any.
    """
    num_blocks = -(-max_model_len // config.cache.block_size)
    runner = ModelRunner(
        decoder,
        sampler,
        pool,
        Mover(pool, decoder.ops.copy_blocks),
        torch.zeros(config.steps.max_running + 1, dtype=torch.int64, device=pool.tensor.device),
        BlockTables(num_batch_slots=config.steps.max_running, num_blocks=num_blocks),
        None if sharing is None else SharedPrefixes(sharing),
        split_sizes(pool.layers[decoder.whole_context]) if pool.tensor.is_cuda else None,
        states if isinstance(states, StatePool) else None,
        Rings(states, decoder.ops.copy_blocks) if isinstance(states, WindowPool) else None,
    )
    return _with_graphs(config, runner)


def _with_graphs(config: EngineConfig, runner: ModelRunner) -> Runner:
    device = runner.pool.tensor.device
    if device.type != "cuda":
        return runner
    dtype = runner.decoder.parameters.embedding.dtype
    runner.sampler.warm_up(runner.decoder.config.vocab_size, device, dtype)
    if not config.steps.graph_tokens:
        return runner
    tables = DeviceTables(
        num_batch_slots=config.steps.max_running,
        num_blocks=runner.tables.host.shape[1],
        scratch_block=runner.pool.num_blocks - 1,
        device=device,
    )
    states = () if runner.states is None else runner.states.layers
    kv, last_tokens = runner.pool.layers, runner.last_tokens
    rings = None if runner.rings is None else runner.rings.pool
    machine = CaptureContext(runner.decoder, kv, last_tokens, tables, states, rings)
    group_rows = 0 if runner.prefixes is None else runner.prefixes.rule.most_rows
    with timed("captured graphs"), cuda_capture() as capture:
        steps = CapturedSteps(
            machine, capture, max_tokens=config.steps.graph_tokens, group_rows=group_rows
        )
    return GraphRunner(replace(runner, tables=tables), steps)
