"""The warm-up of kernels before the first step: a dry run for Triton, real products for cuBLAS.

From the dry run, `kernels.launch.compile_ahead` learns which kernels the engine will launch. The
dry run uses only as many layers and graph buckets as are needed to launch every kernel.

cuBLAS chooses one of many kernels by the number of rows, and loads a kernel at its first use.
Loading waits until the device is idle, so the first step of a size would take 150 ms and more.
Products of many sizes are therefore computed once:

    numbers of rows                         products

    every number of rows that may sample    all layers, and the output head
    every 24th larger number                all layers, as in steps of prompts

The smallest sizes come first. On a slow device, the warm-up stops after MOST_S seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter

import torch
from torch import Tensor

from engine.execution.graphs.block_tables import DeviceTables
from engine.execution.graphs.bucket import GraphBucket
from engine.execution.graphs.buckets import MANY_DECODES, all_buckets
from engine.execution.graphs.steps import CaptureContext, compute_step, inputs_of
from engine.models.adapters.adapted import AdaptedLinear
from engine.models.forward.decoder import Decoder
from engine.models.forward.shortened_decoder import shortened
from engine.models.layers.mixture import Mixture, MixtureConfig
from engine.models.modules import Linear, LinearConfig, walk
from engine.models.weight_formats.fp8 import Fp8Linear
from engine.models.weight_formats.int4 import Int4Linear
from engine.models.weight_formats.plain import PlainLinear
from engine.sampling.sampler import Sampler
from engine.startup.memory.activation import StepBounds, activation_bytes, small_rings, small_states
from kernels.adapters.low_rank import FEW_TILES, FEW_TOKENS, MANY_TOKENS
from kernels.experts.tiles import telling_tokens
from kernels.linear import hopper_tile_configs, int4_linear, linear
from storage.pools.device_pool import empty_blocks, layer_views

# The distance between sizes if there are too many to compute them all. The width of cuBLAS's tiles
# is a multiple of 8. With a distance of 3 x 8, most tiles are the best choice for some size.
EVERY = 24
MOST_S = 3.0


@torch.inference_mode()
def compute_each_once(
    decoder: Decoder,
    *,
    max_rows: int,
    batch_tokens: int,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Compute all GEMMs of steps of up to `batch_tokens` tokens and `max_rows` sampled rows.

    Waits for the device after each size, so that the elapsed time is known.
    """
    device = decoder.head.device
    give_up = clock() + MOST_S
    for rows in row_counts(max_rows, batch_tokens):
        if clock() >= give_up:
            return
        compute_gemms(decoder, rows, sampling=rows <= max_rows)
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def compute_gemms(decoder: Decoder, rows: int, *, sampling: bool) -> None:
    """Compute the GEMMs of all layers for `rows` tokens, and if `sampling`, of the output head.

    Only the last stage has an output head.
    """
    head = [_of_head(decoder)] if sampling and decoder.has_logits else []
    _compute(decoder, [*_of_layers(decoder), *head], rows)


def _compute(decoder: Decoder, matrices: Sequence[Linear], rows: int) -> None:
    like = decoder.parameters.embedding
    for matrix in matrices:
        matrix.product(decoder.ops, like.new_zeros((rows, matrix.config.size_in)))


def row_counts(max_rows: int, batch_tokens: int) -> Iterator[int]:
    """Yield in ascending order the numbers of rows for which GEMMs are computed."""
    yield from range(1, max_rows + 1)
    yield from range(max_rows + EVERY, batch_tokens + 1, EVERY)


def _of_layers(decoder: Decoder) -> Iterator[Linear]:
    seen = set()
    for one in walk(decoder.parameters.layers, Linear):  # type: ignore[type-abstract]
        matrix = one.base if isinstance(one, AdaptedLinear) else one
        config = matrix.config
        kind = type(matrix), config.size_out, config.size_in, config.bias, config.in_parts
        if kind not in seen:
            seen.add(kind)
            yield matrix


def _of_head(decoder: Decoder) -> Linear:
    weight = decoder.head
    size_out, size_in = weight.shape
    rows = (("lm_head", size_out),)
    return PlainLinear(LinearConfig(rows, size_in, False, "rows", in_parts=False), weight, None)


def dry_run(decoder: Decoder, sampler: Sampler, bounds: StepBounds) -> None:
    """Launch every kernel of an engine once, on a CUDA device, and drop the results.

    The launches may be replaced by compilation, because no index depends on kernels' results.
    """
    if bounds.batch_tokens:
        activation_bytes(shortened(decoder), bounds)
    if bounds.graph_tokens:
        dry_run_buckets(decoder, bounds)
    dry_run_gemms(decoder, bounds)
    dry_run_mixtures(decoder, bounds)
    dry_run_adapters(decoder)
    dry_run_copies(decoder, bounds)
    embedding = decoder.parameters.embedding
    sampler.warm_up(decoder.config.vocab_size, embedding.device, embedding.dtype)
    torch.cuda.empty_cache()


@torch.inference_mode()
def dry_run_buckets(decoder: Decoder, bounds: StepBounds) -> None:
    """Compute a step that has only padding, in each bucket that `telling` chooses."""
    machine = small_machine(decoder, bounds)
    small = replace(machine, decoder=shortened(decoder))
    buckets = all_buckets(bounds.max_running, bounds.graph_tokens, bounds.group_rows)
    for inputs in inputs_of(small, telling(buckets)):
        compute_step(small, inputs)


@torch.inference_mode()
def dry_run_gemms(decoder: Decoder, bounds: StepBounds) -> None:
    """Compute products for the small numbers of rows that this project's GEMM kernels handle.

    The kernels for fp8 and int4 matrices with more rows are also launched.
    """
    for rows in range(1, min(linear.MAX_ROWS, bounds.max_running) + 1):
        compute_gemms(decoder, rows, sampling=True)
    in_int4 = [matrix for matrix in _of_layers(decoder) if isinstance(matrix, Int4Linear)]
    for rows in int4_linear.TELLING_ROWS if in_int4 else ():
        _compute(decoder, in_int4, rows)
    in_fp8 = [matrix for matrix in _of_layers(decoder) if isinstance(matrix, Fp8Linear)]
    for rows in hopper_tile_configs.TELLING_ROWS if in_fp8 else ():
        _compute(decoder, in_fp8, rows)


@torch.inference_mode()
def dry_run_mixtures(decoder: Decoder, bounds: StepBounds) -> None:
    """Compute each kind of mixture, for numbers of tokens that together select all its kernels.

    Mixtures with memory for adapters of experts are also computed with adapters.
    """
    most, like = max(bounds.batch_tokens, bounds.max_running), decoder.parameters.embedding
    for config, mixture in _mixtures(decoder).items():
        for tokens in telling_tokens(config.num_experts, config.top_k, most):
            x = like.new_zeros((tokens, decoder.config.hidden_size))
            mixture.product(decoder.ops, x)
            if mixture.experts.room is not None:
                slots = torch.zeros(tokens, dtype=torch.int32, device=like.device)
                mixture.product(decoder.ops.of_tokens(slots, decoder.num_slots), x)


@torch.inference_mode()
def dry_run_adapters(decoder: Decoder) -> None:
    """Compute the products of adapters, if any, for each shape and each tile size of tokens."""
    if not decoder.num_slots:
        return
    like, kinds = decoder.parameters.embedding, dict[LinearConfig, AdaptedLinear]()
    for matrix in walk(decoder.parameters.layers, AdaptedLinear):
        rows = tuple(("", count) for _, count in matrix.config.rows)
        kinds.setdefault(replace(matrix.config, rows=rows), matrix)
    more = FEW_TOKENS * decoder.num_slots + 1
    for tokens in (1, more, max(more, FEW_TILES * MANY_TOKENS + 1)):
        slots = torch.zeros(tokens, dtype=torch.int32, device=like.device)
        for matrix in kinds.values():
            ops = decoder.ops.of_tokens(slots, decoder.num_slots)
            matrix.product(ops, like.new_zeros((tokens, matrix.config.size_in)))


def _mixtures(decoder: Decoder) -> dict[MixtureConfig, Mixture]:
    found = list(walk(decoder.parameters.layers, Mixture))
    return {one.config: one for one in reversed(found)}


def dry_run_copies(decoder: Decoder, bounds: StepBounds) -> None:
    """Copy a block within the pool. Steps do this if prompts differ within a block."""
    pool = _one_block(decoder, bounds)
    block = torch.zeros(1, dtype=torch.int64, device=pool.device)
    decoder.ops.copy_blocks(pool, block, block)
    rings = small_rings(bounds.states, bounds.layout.block_bytes, pool.device)
    if rings is not None:
        decoder.ops.copy_blocks(rings.rings, block, block)


def telling(buckets: Sequence[GraphBucket]) -> list[GraphBucket]:
    """Choose few buckets that together launch all kernels: those with few decodes.

    With more decodes, the same kernels are launched for more rows. The buckets with the most new
    tokens come first, because their attention kernels take longest to compile.
    """
    fewest: dict[int, int] = {}
    for bucket in buckets:
        if bucket.num_new:
            least = fewest.get(bucket.group_rows, bucket.num_decodes)
            fewest[bucket.group_rows] = min(least, bucket.num_decodes)
    kept = [
        bucket
        for bucket in buckets
        if bucket.num_decodes <= (fewest[bucket.group_rows] if bucket.num_new else MANY_DECODES)
    ]
    return sorted(kept, key=attrgetter("num_new"), reverse=True)


def small_machine(decoder: Decoder, bounds: StepBounds) -> CaptureContext:
    """Make a context for steps of the dry run: like the engine's, but with a pool of one block."""
    pool = _one_block(decoder, bounds)
    return CaptureContext(
        decoder=decoder,
        pool=layer_views(pool, bounds.layout),
        last_tokens=torch.zeros(bounds.max_running + 1, dtype=torch.int64, device=pool.device),
        tables=DeviceTables(
            num_batch_slots=bounds.max_running,
            num_blocks=-(-bounds.max_model_len // bounds.layout.block_size),
            scratch_block=0,
            device=pool.device,
        ),
        states=small_states(bounds.states, pool.device),
        rings=small_rings(bounds.states, bounds.layout.block_bytes, pool.device),
    )


def _one_block(decoder: Decoder, bounds: StepBounds) -> Tensor:
    """Allocate one block with the strides of the engine's pool, because kernels depend on them."""
    return empty_blocks(bounds.layout, 1, decoder.parameters.embedding.device)
