"""The loading of a model on its device: config, weights, pool, runner, fingerprint."""

from __future__ import annotations

import logging
import os
import secrets
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from uuid import uuid4

import torch

from engine.config import EngineConfig
from engine.exchange.ranks_units import RanksUnits
from engine.exchange.units import DeviceUnits, UnitMemory
from engine.execution.graphs.runner import GraphRunner
from engine.grammars.grammars import Grammars, open_grammars
from engine.link.messages import Welcome
from engine.models.adapters.adapted import AdapterSlots
from engine.models.config import ModelConfig, reads_modules
from engine.models.forward.decoder import Decoder
from engine.offload.host_layers import HostLayers
from engine.ranks.groups import RankGroups
from engine.ranks.leader import Ranks
from engine.ranks.peer_memory import RowShape
from engine.ranks.runner import NeverRaised, RanksRunner
from engine.ranks.sampling import ranks_sampler
from engine.ranks.stage_runners import EarlierStageRunner, of_rank_0
from engine.sampling.planner import Planner
from engine.sampling.sampler import Sampler
from engine.sampling.tables import SlotTables
from engine.startup.adapters import open_adapters
from engine.startup.assembly import LoadedRunner
from engine.startup.decoder import adapted_decoder, load_decoder, open_host_layers
from engine.startup.device import dtype_name, usual_threads
from engine.startup.kernel_warm_up import compute_each_once, dry_run
from engine.startup.memory.pool_size import PoolSizes
from engine.startup.metadata import ModelMetadata, read_metadata
from engine.startup.model_runner import open_runner, sharing_rule
from engine.startup.origin import origin_of
from engine.startup.pools import open_pool, open_state_pool, sizes_of_pools, step_bounds
from engine.startup.timed import timed
from engine.startup.unchanged import check_unchanged, weight_states
from engine.step import Runner
from kernels.launch.compile_ahead import compile_ahead
from kernels.launch.compiler_key import begin_key
from storage.pools.device_pool import DevicePool
from storage.pools.state_pool import StatePool
from storage.pools.window_pool import WindowPool

SCRATCH_BLOCKS = 1  # one block after the cache's blocks, which padding writes

# The bytes of weights per byte that may still be loading when a step starts. A device reads its own
# memory about 80 times as fast as host memory over a bus. While a step reads three quarters of the
# weights, about 1/100 of the weights' bytes can be loaded.
WEIGHTS_PER_LATE_BYTE = 100

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenedPart:
    """The runner of this rank's steps, and the objects it uses.

    `fingerprint` is that of this rank's blocks. It differs between ranks.
    """

    runner: Runner
    pool: DevicePool
    sizes: PoolSizes
    max_model_len: int
    fingerprint: bytes
    host_layers: HostLayers | None = None  # None: all weights are on the device
    states: StatePool | WindowPool | None = None  # None: all layers have their KV in the pool
    adapter_slots: AdapterSlots | None = None

    def close(self) -> None:
        """Free captured graphs, and weights in host memory. Call before the group of ranks closes.

        No step can be computed afterwards.
        """
        own = self.runner.own if isinstance(self.runner, EarlierStageRunner) else self.runner
        if isinstance(own, GraphRunner):
            own.steps.drop()
        if self.host_layers is not None:
            self.host_layers.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedModel(LoadedRunner):
    """A model that is ready to compute steps, with its config and its pool."""

    part: OpenedPart
    states: StatePool | WindowPool | None
    pool: DevicePool
    model: ModelConfig
    max_batch_tokens: int
    grammars: Grammars


def open_model(
    config: EngineConfig, metadata: ModelMetadata | None = None, team: Ranks | None = None
) -> OpenedModel:
    """Load the model that `config` and `metadata` describe, and allocate its pool.

    With a `team` of ranks, this process is rank 0, and the runner also sends steps to the other
    ranks. Raises ModelError.
    """
    metadata = metadata or read_metadata(config)
    model = metadata.model
    part = open_part(config, metadata, None if team is None else team.groups)
    runner = None if team is None else RanksRunner(of_rank_0(part.runner, team.groups), team.others)
    with timed("vocabulary of grammars"):
        grammars = open_grammars(
            Path(config.model.model_dir), model.vocab_size, model.eos_token_ids
        )
    return OpenedModel(
        runner=runner or part.runner,
        welcome=_welcome(config, metadata, part),
        num_blocks=part.sizes.num_blocks,
        num_states=part.sizes.num_states,
        states_in_place=metadata.rings is not None,
        has_draft_head=model.draft_head is not None,
        out_of_memory=torch.OutOfMemoryError if team is None else NeverRaised,
        constraint_of=grammars.constraint_of,
        forget_grammars=grammars.forget,
        masks=grammars.masks,
        adapters=open_adapters(config, part.adapter_slots, runner, team),
        units=_units(part, runner),
        part=part,
        states=part.states,
        pool=part.pool,
        model=model,
        max_batch_tokens=metadata.batch_tokens,
        grammars=grammars,
    )


def _welcome(config: EngineConfig, metadata: ModelMetadata, part: OpenedPart) -> Welcome:
    model = metadata.model
    return Welcome(
        engine_id=uuid4().hex,
        fingerprint=part.fingerprint,
        vocab_size=model.vocab_size,
        block_size=config.cache.block_size,
        max_model_len=part.max_model_len,
        eos_token_ids=model.eos_token_ids,
        device=str(metadata.device),
        dtype=dtype_name(metadata.dtype),
        role=config.process.role,
        tensor_parallel=config.ranks.tensor_parallel,
        pipeline_parallel=config.ranks.pipeline_parallel,
        hidden_size=model.hidden_size,
        has_head=metadata.has_head,
        has_modules=reads_modules(model),
    )


def _units(part: OpenedPart, runner: RanksRunner | None) -> UnitMemory:
    own = DeviceUnits(part.pool, part.states)
    return own if runner is None else RanksUnits(own, runner.others, runner.catch_up)


def open_part(
    config: EngineConfig, metadata: ModelMetadata, groups: RankGroups | None = None
) -> OpenedPart:
    """Load the model, or this rank's part of it, and allocate its pool.

    All ranks must call this at the same time, because they agree on the number of blocks. Raises
    ModelError.
    """
    torch.set_num_threads(config.process.num_threads or _usual_threads(config))
    device = metadata.device
    compiler_key = begin_key() if device.type == "cuda" else None
    if groups is not None and groups.tensor is not None and config.ranks.peer_memory:
        groups.tensor.open_peer_memory(RowShape(metadata.model.hidden_size, metadata.dtype))
    host_layers = open_host_layers(config, metadata, None if groups is None else groups.tensor)
    weights_before = weight_states(config)
    with timed("weights"):
        decoder = load_decoder(config, metadata, groups, host_layers)
    decoder, adapter_slots = adapted_decoder(config, metadata, decoder)
    sampler = _sampler(config, metadata.model, decoder)
    if compiler_key is not None:
        _make_kernels_ready(config, decoder, sampler, metadata, compiler_key)
    sizes = sizes_of_pools(config, decoder, metadata)
    if groups is not None:
        least = groups.least(sizes.num_blocks), groups.least(sizes.num_states)
        sizes = PoolSizes(*least)
    num_blocks = sizes.num_blocks
    pool = open_pool(
        metadata.layout, num_blocks + SCRATCH_BLOCKS, device, _late_bytes(decoder, groups)
    )
    _log.info("%d tokens of KV fit", num_blocks * config.cache.block_size)
    decoder = replace(decoder, late=pool.late)
    max_model_len = min(metadata.model_len, num_blocks * config.cache.block_size)
    sharing = sharing_rule(config, metadata.part, metadata.layout, device)
    states = open_state_pool(config, metadata, sizes.num_states)
    runner = open_runner(
        config, decoder, sampler, pool, sharing, max_model_len=max_model_len, states=states
    )
    origin = origin_of(config, metadata, groups)
    check_unchanged(config, weights_before)
    return OpenedPart(
        runner if decoder.has_logits else EarlierStageRunner(runner, device),
        pool,
        sizes,
        max_model_len,
        origin.fingerprint(),
        host_layers,
        states,
        adapter_slots,
    )


def _usual_threads(config: EngineConfig) -> int:
    return max(1, usual_threads(len(os.sched_getaffinity(0))) // config.ranks.num_ranks)


def _late_bytes(decoder: Decoder, groups: RankGroups | None) -> int:
    """Return how many bytes of a KV load may arrive after the step that reads it has started.

    With several ranks, return 0.
    """
    return 0 if groups is not None else decoder.parameters.num_bytes // WEIGHTS_PER_LATE_BYTE


def _sampler(config: EngineConfig, model: ModelConfig, decoder: Decoder) -> Sampler:
    fresh_seed, batch_slots = partial(secrets.randbits, 64), config.steps.max_running
    planner = Planner(model.vocab_size, model.eos_token_ids, fresh_seed, batch_slots)
    sampler = Sampler(planner, decoder.ops, SlotTables(batch_slots, model.vocab_size))
    return ranks_sampler(sampler, decoder.group)


def _make_kernels_ready(
    config: EngineConfig,
    decoder: Decoder,
    sampler: Sampler,
    metadata: ModelMetadata,
    compiler_key: Future[str],
) -> None:
    dry_run_of_model = partial(dry_run, decoder, sampler, step_bounds(config, metadata))
    compile_ahead(dry_run_of_model, compiler_key)
    with timed("GEMM warm-up"):
        most = metadata.batch_tokens
        compute_each_once(decoder, max_rows=config.steps.max_running, batch_tokens=most)
