"""What an engine launches before it is ready, gone through once and in small.

For `kernels.compile_ahead`: which kernels there will be, without waiting for any. In small means
with the first two layers of the model, since all behind them launch the same, with a pool of their
size, and with those rooms only that may launch something of their own.

Knows: what is launched while an engine starts. Does not know: kernels, or what becomes of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.activation import activation_bytes
from engine.first_products import compute_products
from engine.graphs.block_tables import BlockTables
from engine.graphs.inputs import Room
from engine.graphs.steps import MANY_DECODES, Machine, all_rooms, compute_step, inputs_of
from engine.model.decoder import UNLIKE_LAYERS, Decoder, first_layers
from engine.sampler.sampler import Sampler
from kernels import linear
from kernels.batch_layout import empty_pool, kv_pool_shape


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of the steps that will run, in tokens and rows."""

    batch_tokens: int  # of the largest step, whose memory is measured; 0: it is not
    max_running: int
    max_model_len: int
    block_size: int
    graph_tokens: int  # of the largest recorded step; 0: none is
    group_rows: int  # decodes that read a prefix together; 0: none do


def rehearse(decoder: Decoder, sampler: Sampler, bounds: Bounds) -> None:
    """Launch on a CUDA device what a start launches, once each; nothing is kept.

    Whether the kernels run or not, no index in it comes from their results.
    """
    if bounds.batch_tokens:
        activation_bytes(
            first_layers(decoder, UNLIKE_LAYERS),
            batch_tokens=bounds.batch_tokens,
            max_rows=bounds.max_running,
            group_rows=bounds.group_rows,
            max_model_len=bounds.max_model_len,
            block_size=bounds.block_size,
        )
    if bounds.graph_tokens:
        rehearse_rooms(decoder, bounds)
    rehearse_products(decoder, bounds)
    rehearse_copies(decoder, bounds)
    sampler.warm_up(decoder.config.vocab_size, decoder.parameters.embedding.device)
    torch.cuda.empty_cache()


@torch.inference_mode()
def rehearse_rooms(decoder: Decoder, bounds: Bounds) -> None:
    """Compute a step of nothing but padding in each of the telling rooms."""
    machine = small_machine(decoder, bounds)
    shortened = replace(machine, decoder=first_layers(decoder, UNLIKE_LAYERS))
    rooms = all_rooms(bounds.max_running, bounds.graph_tokens, bounds.group_rows)
    for inputs in inputs_of(shortened, telling(rooms)):
        compute_step(shortened, inputs)


@torch.inference_mode()
def rehearse_products(decoder: Decoder, bounds: Bounds) -> None:
    """Compute products of as few rows as kernels are compiled for, not taken from the library."""
    for rows in range(1, min(linear.MAX_ROWS, bounds.max_running) + 1):
        compute_products(decoder, rows, sampling=True)


def rehearse_copies(decoder: Decoder, bounds: Bounds) -> None:
    """Copy a block within the pool, as a prompt wants it that parts from another within a block."""
    pool = _pool(decoder, bounds)
    block = torch.zeros(1, dtype=torch.int64, device=pool.device)
    decoder.ops.copy_blocks(pool, block, block)


def telling(rooms: Sequence[Room]) -> list[Room]:
    """Rooms of few decodes alone, and of those with other rows the ones with the fewest decodes.

    How many decodes there are beside other rows changes how much is launched, not what, and so it
    is with more than a few alone. Those with the most new tokens come first: their attention takes
    longest to compile.
    """
    fewest: dict[int, int] = {}
    for room in rooms:
        if room.num_new:
            least = fewest.get(room.group_rows, room.num_decodes)
            fewest[room.group_rows] = min(least, room.num_decodes)
    kept = [
        room
        for room in rooms
        if room.num_decodes <= (fewest[room.group_rows] if room.num_new else MANY_DECODES)
    ]
    return sorted(kept, key=_new_tokens, reverse=True)


def _new_tokens(room: Room) -> int:
    return room.num_new


def small_machine(decoder: Decoder, bounds: Bounds) -> Machine:
    """What steps are rehearsed on: as the engine's, with a pool of one block."""
    pool = _pool(decoder, bounds)
    return Machine(
        decoder=decoder,
        pool=pool,
        last_tokens=torch.zeros(bounds.max_running + 1, dtype=torch.int64, device=pool.device),
        tables=BlockTables(
            num_seats=bounds.max_running,
            num_blocks=-(-bounds.max_model_len // bounds.block_size),
            scratch_block=0,
            device=pool.device,
        ),
    )


def _pool(decoder: Decoder, bounds: Bounds) -> Tensor:
    """One block, with room for all layers: its strides are constants of kernels."""
    config, weights = decoder.config, decoder.parameters.embedding
    shape = kv_pool_shape(
        num_blocks=1,
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        block_size=bounds.block_size,
        head_dim=config.head_dim,
    )
    return empty_pool(shape, weights.dtype, weights.device)
