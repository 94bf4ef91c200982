"""Puts a model on its device: config, weights, pool, runner, fingerprint.

Knows: in which order, and what each step needs of the one before. Does not know: the scheduler
or the link, which get what is opened here.
"""

from __future__ import annotations

import os
import secrets
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from engine.activation import activation_bytes
from engine.config import EngineConfig
from engine.device import dtype_name, free_bytes, resolve_device, resolve_dtype, usual_threads
from engine.fingerprint import BlockOrigin, dummy_digest, tokenizer_digest, weights_digest
from engine.first_products import compute_each_once
from engine.graphs.block_tables import BlockTables
from engine.graphs.recorder import cuda_recorder
from engine.graphs.runner import GraphRunner
from engine.graphs.steps import Machine, RecordedSteps
from engine.model.config import ModelConfig, read_model_config
from engine.model.decoder import Decoder, build_decoder
from engine.model.dummy import dummy_parameters
from engine.model.errors import BadConfig, PoolTooSmall, UnsupportedModel
from engine.model.weights import load_parameters
from engine.pool_size import Memory, blocks_for_tokens, blocks_on_cpu, blocks_on_cuda
from engine.rehearsal import Bounds, rehearse
from engine.runner import ModelRunner
from engine.sampler.planner import Planner
from engine.sampler.sampler import Sampler
from engine.shared_prefixes import MIN_GROUP_ROWS, SharedPrefixes, SharingRule
from engine.step import Runner
from engine.timed import timed
from kernels.compile_ahead import compile_ahead
from kernels.compiler_key import begin_key
from kernels.errors import UnsupportedShape
from kernels.limits import check_attention, check_hidden_size
from kernels.ops import ops_for
from kernels.tuning import LEAST_SHARED_TOKENS, rows_together
from kernels.unit_sizes import unit_sizes
from storage.device_pool import BlockShape, DevicePool
from storage.errors import PoolDoesNotFit
from storage.mover import Mover

DUMMY_SEED = 0
SCRATCH_BLOCKS = 1  # behind the cache's blocks: padding writes there
CPU_BATCH_TOKENS = 512
CUDA_BATCH_TOKENS = 8192
# A device reads its own memory some 80 times as fast as a bus brings the host's: so much of a load
# as the weights' bytes over this comes while three quarters of the weights are read.
WEIGHTS_PER_LATE_BYTE = 100
# Raised whenever a kernel's results may differ in a bit from those of the release before.
NUMERICS_VERSION = 6


@dataclass(frozen=True, slots=True)
class ModelOutline:
    """What is known of a model before any of it is loaded."""

    model: ModelConfig
    device: torch.device
    dtype: torch.dtype
    shape: BlockShape
    limits: _Limits


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model ready to compute steps, with what the rest of the engine has to know of it."""

    runner: Runner
    pool: DevicePool
    model: ModelConfig
    num_blocks: int
    block_size: int
    max_model_len: int  # tokens: what was asked for or the model's, and no more than the pool
    max_batch_tokens: int
    fingerprint: bytes
    device: str
    dtype: str


@dataclass(frozen=True, slots=True)
class _Limits:
    model_len: int
    batch_tokens: int


def outline_model(config: EngineConfig) -> ModelOutline:
    """What can be known of the model of `config` without loading it; raises ModelError."""
    model = read_model_config(Path(config.model_dir))
    _check_geometry(model, config.block_size)
    device = resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, device, model.dtype)
    shape = BlockShape(
        model.num_layers, model.num_kv_heads, config.block_size, model.head_dim, dtype
    )
    return ModelOutline(model, device, dtype, shape, _limits(config, model, device))


def open_model(config: EngineConfig, outline: ModelOutline | None = None) -> OpenedModel:
    """Load the model of `config` and allocate its pool; raises ModelError.

    `outline` is its outline, where that is there already.
    """
    torch.set_num_threads(config.num_threads or usual_threads(len(os.sched_getaffinity(0))))
    outline = outline or outline_model(config)
    model, device, dtype, limits = outline.model, outline.device, outline.dtype, outline.limits
    compiler_key = begin_key() if device.type == "cuda" else None
    with timed("weights"):
        decoder = _decoder(config, model, dtype, limits.model_len, device)
    planner = Planner(model.vocab_size, model.eos_token_ids, partial(secrets.randbits, 64))
    sampler = Sampler(planner, decoder.ops.draw, decoder.ops.keep_likeliest)
    if compiler_key is not None:
        _make_kernels_ready(config, decoder, sampler, limits, compiler_key)
    num_blocks = _num_blocks(config, decoder, outline.shape, limits)
    late_bytes = decoder.parameters.num_bytes // WEIGHTS_PER_LATE_BYTE
    pool = _pool(outline.shape, num_blocks + SCRATCH_BLOCKS, device, late_bytes)
    decoder = replace(decoder, late=pool.late)
    max_model_len = min(limits.model_len, num_blocks * config.block_size)
    return OpenedModel(
        runner=_with_graphs(config, _runner(config, decoder, sampler, pool), max_model_len),
        pool=pool,
        model=model,
        num_blocks=num_blocks,
        block_size=config.block_size,
        max_model_len=max_model_len,
        max_batch_tokens=limits.batch_tokens,
        fingerprint=_origin(config, model, dtype, device).fingerprint(),
        device=str(device),
        dtype=dtype_name(dtype),
    )


def _make_kernels_ready(
    config: EngineConfig,
    decoder: Decoder,
    sampler: Sampler,
    limits: _Limits,
    compiler_key: Future[str],
) -> None:
    """Ours by a rehearsal, the library's by using them."""
    rehearsal = partial(rehearse, decoder, sampler, _bounds(config, decoder, limits))
    compile_ahead(rehearsal, compiler_key)
    with timed("products of all sizes"):
        compute_each_once(decoder, max_rows=config.max_running, batch_tokens=limits.batch_tokens)


def _runner(
    config: EngineConfig, decoder: Decoder, sampler: Sampler, pool: DevicePool
) -> ModelRunner:
    sharing = _sharing_rule(config, decoder)
    return ModelRunner(
        decoder,
        sampler,
        pool,
        Mover(pool, decoder.ops.copy_blocks),
        torch.zeros(config.max_running + 1, dtype=torch.int64, device=pool.tensor.device),
        None if sharing is None else SharedPrefixes(sharing),
        unit_sizes(pool.tensor) if pool.tensor.is_cuda else None,
    )


def _bounds(config: EngineConfig, decoder: Decoder, limits: _Limits) -> Bounds:
    """Of the steps to come, as far as they are known before the pool."""
    sharing = _sharing_rule(config, decoder)
    return Bounds(
        batch_tokens=limits.batch_tokens if config.cache_tokens is None else 0,
        max_running=config.max_running,
        max_model_len=min(limits.model_len, config.cache_tokens or limits.model_len),
        block_size=config.block_size,
        graph_tokens=config.graph_tokens,
        group_rows=0 if sharing is None else sharing.most_rows,
    )


def _sharing_rule(config: EngineConfig, decoder: Decoder) -> SharingRule | None:
    """When decodes read a prefix together; None: never, as on a CPU."""
    model, weights = decoder.config, decoder.parameters.embedding
    least = config.least_shared_tokens
    if least is None:
        least = LEAST_SHARED_TOKENS
    most_rows = rows_together(model.num_heads // model.num_kv_heads)
    if weights.device.type == "cpu" or not least or most_rows < MIN_GROUP_ROWS:
        return None
    token_bytes = 2 * model.num_kv_heads * model.head_dim * weights.dtype.itemsize
    return SharingRule(config.block_size, token_bytes, least, most_rows)


def _with_graphs(config: EngineConfig, runner: ModelRunner, max_model_len: int) -> Runner:
    """The runner that replays small steps, where the device can and the config wants it."""
    pool = runner.pool.tensor
    if pool.device.type != "cuda":
        return runner
    runner.sampler.warm_up(runner.decoder.config.vocab_size, pool.device)
    if not config.graph_tokens:
        return runner
    tables = BlockTables(
        num_seats=config.max_running,
        num_blocks=-(-max_model_len // config.block_size),
        scratch_block=pool.shape[0] - 1,
        device=pool.device,
    )
    machine = Machine(runner.decoder, pool, runner.last_tokens, tables)
    group_rows = 0 if runner.prefixes is None else runner.prefixes.rule.most_rows
    with timed("recorded steps"), cuda_recorder() as recorder:
        steps = RecordedSteps(
            machine, recorder, max_tokens=config.graph_tokens, group_rows=group_rows
        )
    return GraphRunner(runner, tables, steps)


def _check_geometry(model: ModelConfig, block_size: int) -> None:
    try:
        check_attention(
            model.num_heads, model.num_kv_heads, block_size=block_size, head_dim=model.head_dim
        )
        check_hidden_size(model.hidden_size)
    except UnsupportedShape as error:
        raise UnsupportedModel(str(error)) from error


def _pool(shape: BlockShape, num_blocks: int, device: torch.device, late_bytes: int) -> DevicePool:
    try:
        return DevicePool(shape, num_blocks, device, late_bytes)
    except PoolDoesNotFit as error:
        raise PoolTooSmall(str(error)) from error


def _limits(config: EngineConfig, model: ModelConfig, device: torch.device) -> _Limits:
    asked = config.max_model_len
    if asked is not None and asked > model.max_positions:
        raise BadConfig(f"max_model_len {asked}: the model has {model.max_positions} positions")
    usual = CPU_BATCH_TOKENS if device.type == "cpu" else CUDA_BATCH_TOKENS
    return _Limits(asked or model.max_positions, config.max_batch_tokens or usual)


def _decoder(
    config: EngineConfig,
    model: ModelConfig,
    dtype: torch.dtype,
    num_positions: int,
    device: torch.device,
) -> Decoder:
    if config.load_format == "dummy":
        parameters = dummy_parameters(model, dtype, device, DUMMY_SEED)
    else:
        parameters = load_parameters(Path(config.model_dir), model, dtype, device)
    return build_decoder(model, parameters, ops_for(device), num_positions)


def _num_blocks(config: EngineConfig, decoder: Decoder, shape: BlockShape, limits: _Limits) -> int:
    if config.cache_tokens is not None:
        return blocks_for_tokens(config.cache_tokens, config.block_size)
    device = decoder.parameters.embedding.device
    if device.type == "cpu":
        return blocks_on_cpu(free_bytes(device), shape.block_bytes)
    sharing = _sharing_rule(config, decoder)
    activations = activation_bytes(
        decoder,
        batch_tokens=limits.batch_tokens,
        max_rows=config.max_running,
        group_rows=0 if sharing is None else sharing.most_rows,
        max_model_len=limits.model_len,
        block_size=config.block_size,
    )
    memory = Memory(free_bytes(device), decoder.parameters.num_bytes, activations)
    return blocks_on_cuda(memory, config.memory_fraction, shape.block_bytes)


def _origin(
    config: EngineConfig, model: ModelConfig, dtype: torch.dtype, device: torch.device
) -> BlockOrigin:
    model_dir = Path(config.model_dir)
    dummy = config.load_format == "dummy"
    return BlockOrigin(
        weights=dummy_digest(DUMMY_SEED) if dummy else weights_digest(model_dir),
        model=model,
        tokenizer=tokenizer_digest(model_dir),
        weight_dtype=dtype_name(dtype),
        kv_dtype=dtype_name(dtype),
        block_size=config.block_size,
        numerics=f"{device.type}-{NUMERICS_VERSION}",
    )
