"""The memory that the largest step needs on a CUDA device, in addition to weights and pool.

The forward pass of a step with prompts is run, and its memory is measured. The additional memory of
decodes and sampling depends on shared prefixes and sampling options, so a formula gives an upper
bound.

Elsewhere: the use of the result (`pool_size`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.execution.batch import Batch
from engine.execution.shared_prefixes import most_groups
from engine.models.config import ModelConfig
from engine.models.forward.decoder import Decoder
from engine.models.forward.memories import StepMemory
from engine.models.layers.attention import AttentionConfig
from engine.models.layers.latent import LatentConfig
from engine.models.layers.mixer import KvConfig
from kernels.attention.batch_layout import BatchLayout
from kernels.attention.tuning import decode_tuning, shared_tuning
from kernels.latents.scratch import most_scratch_bytes
from kernels.recurrence.state_rows import StateRows
from storage.layouts.kv_layout import KvLayout
from storage.layouts.state_layout import StateLayout
from storage.layouts.window_layout import SlotLayout, WindowLayout
from storage.move import FIRST_SLOT, NO_STATE
from storage.pools.device_pool import empty_blocks, layer_views
from storage.pools.state_pool import LayerState, StepStates, empty_states, state_views
from storage.pools.window_pool import StepWindows, WindowPool

# The maximum number of float32 copies of the logits that sampling needs at the same time: sorted
# values, their ids (twice as wide), scores, probabilities, sums, noise and masks. The tables of
# requests' parameters are not included: they are allocated when first needed (`sampler.tables`).
SAMPLING_COPIES = 12


@dataclass(frozen=True, slots=True)
class StepBounds:
    """The limits of future steps, in tokens and rows."""

    batch_tokens: int  # tokens of the largest step, whose memory is measured; 0: measure nothing
    max_running: int
    max_model_len: int
    layout: KvLayout
    graph_tokens: int  # maximum tokens of a captured graph; 0: no graphs
    group_rows: int  # maximum number of decodes in a group that shares a prefix; 0: no sharing
    states: SlotLayout | None = None  # None: neither recurrent states nor ring buffers


def activation_bytes(decoder: Decoder, bounds: StepBounds) -> int:
    """Measure the peak bytes that the largest step needs on CUDA, beyond memory already in use."""
    device, layout, config = decoder.parameters.embedding.device, bounds.layout, decoder.config
    sizes = bounds.batch_tokens, bounds.max_model_len, layout.block_size
    batch = largest_batch(*sizes, device)
    num_blocks = _blocks_per_row(*sizes)
    states = _step_memory(bounds.states, batch.layout, num_blocks, device)
    pool = layer_views(empty_blocks(layout, num_blocks, device), layout)
    pool_dtype, adapters = pool[0].dtype, None
    if decoder.num_slots:
        adapters = torch.zeros_like(batch.token_ids, dtype=torch.int32)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    decoder.logits(batch.token_ids, batch.layout, pool, batch.outputs, states, adapters)
    torch.cuda.synchronize(device)
    forward = torch.cuda.max_memory_allocated(device) - before
    del pool, states
    torch.cuda.empty_cache()
    rows = bounds.max_running
    partial = partial_bytes(config, pool_dtype, max_rows=rows, group_rows=bounds.group_rows)
    return forward + partial + sampling_bytes(rows, config.vocab_size)


def _step_memory(
    layout: SlotLayout | None, rows: BatchLayout, num_blocks: int, device: torch.device
) -> StepMemory:
    if isinstance(layout, WindowLayout):
        kv = layout.kv
        return StepWindows(rows, layer_views(empty_blocks(kv, num_blocks, device), kv))
    return StepStates(state_rows(rows), small_states(layout, device))


def small_rings(
    layout: SlotLayout | None, block_bytes: int, device: torch.device
) -> WindowPool | None:
    """Allocate two ring buffers, of which the first stays unused. Return None without rings."""
    if not isinstance(layout, WindowLayout):
        return None
    return WindowPool(layout, FIRST_SLOT + 1, device, block_bytes, 0)


def small_states(layout: SlotLayout | None, device: torch.device) -> tuple[LayerState, ...]:
    """Allocate two recurrent states: the unused one, and one that rows of `state_rows` write."""
    if not isinstance(layout, StateLayout):
        return ()
    return state_views(empty_states(layout, FIRST_SLOT + 1, device), layout)


def state_rows(layout: BatchLayout) -> StateRows:
    """Return rows that all write to the same slot of `small_states`. No row reads that slot."""
    like = torch.zeros_like(layout.context_lens)
    return StateRows(
        row_starts=layout.query_starts,
        context_lens=layout.context_lens,
        read_slots=like + NO_STATE,
        write_slots=like + FIRST_SLOT,
        runs=like + 1,
        kept=like + 1,
        num_decodes=layout.num_decodes,
    )


def sampling_bytes(max_rows: int, vocab_size: int) -> int:
    """Return an upper bound on the bytes that sampling `max_rows` rows needs."""
    return SAMPLING_COPIES * 4 * max_rows * vocab_size


def partial_bytes(
    config: ModelConfig, dtype: torch.dtype, *, max_rows: int, group_rows: int
) -> int:
    """Return an upper bound on the bytes of partial attention outputs of `max_rows` decodes.

    Each split of the keys (`kernels.attention.decode.decode_attention`) has a float32 output and
    its log-sum-exp for every row, before they are merged. Only one layer is counted, because the
    next layer reuses the memory.
    """
    return max(_partial_bytes(one, dtype, max_rows, group_rows) for one in config.attentions)


def _partial_bytes(attention: KvConfig, dtype: torch.dtype, max_rows: int, group_rows: int) -> int:
    if isinstance(attention, LatentConfig):
        return most_scratch_bytes(attention.shape, attention.num_heads, dtype)
    assert isinstance(attention, AttentionConfig), "there is no other kind"
    own = decode_tuning(attention.head_dim, dtype)
    slots = own.most_splits(attention.num_kv_heads) + max_rows
    if group_rows:
        shared = shared_tuning(attention.head_dim, dtype)
        splits = shared.most_splits(attention.num_kv_heads) + most_groups(max_rows)
        slots += splits * group_rows
    return 4 * slots * attention.num_heads * (attention.head_dim + 1)


def _blocks_per_row(batch_tokens: int, max_model_len: int, block_size: int) -> int:
    return -(-min(batch_tokens, max_model_len) // block_size)


def largest_batch(
    batch_tokens: int, max_model_len: int, block_size: int, device: torch.device
) -> Batch:
    """Build a batch of `batch_tokens` tokens, in rows of up to `max_model_len`, for measuring.

    All rows use the same blocks.
    """
    lengths = [
        min(max_model_len, batch_tokens - start) for start in range(0, batch_tokens, max_model_len)
    ]
    num_blocks = _blocks_per_row(batch_tokens, max_model_len, block_size)
    positions = torch.cat([torch.arange(length) for length in lengths])
    starts = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    tables = torch.arange(num_blocks, dtype=torch.int32).repeat(len(lengths), 1)
    layout = BatchLayout(
        query_starts=starts.to(device),
        context_lens=torch.tensor(lengths, dtype=torch.int32, device=device),
        block_tables=tables.to(device),
        positions=positions.to(device),
        slots=positions.to(device),
        num_decodes=0,
        max_context_len=max(lengths),
    )
    token_ids = torch.zeros(batch_tokens, dtype=torch.int64, device=device)
    outputs = (starts[1:] - 1).to(device, torch.int64)
    return Batch(token_ids, layout, outputs, outputs, outputs[:0], outputs[:0])
