"""Measures the memory that the largest step takes on a CUDA device, beside weights and pool.

The forward pass of a step of prompts is run and measured. What decodes and sampling may take on
top is bounded by a formula, since it depends on which prefixes they share and how they sample.

Knows: how to make a step of the largest size without sequences. Does not know: what the number
is used for (`pool_size`).
"""

from __future__ import annotations

import torch

from engine.batch import Batch
from engine.model.config import ModelConfig
from engine.model.decoder import Decoder
from engine.shared_prefixes import most_groups
from kernels.batch_layout import BatchLayout, empty_pool, kv_pool_shape
from kernels.tuning import decode_tuning, shared_tuning

# Copies of the sampled rows' logits, in float32, that the most demanding sampling holds at once:
# sorted values, their ids (twice as wide), scores, probabilities, sums, noise, masks.
SAMPLING_COPIES = 12


def activation_bytes(
    decoder: Decoder,
    *,
    batch_tokens: int,
    max_rows: int,
    group_rows: int,
    max_model_len: int,
    block_size: int,
) -> int:
    """Peak bytes, on top of what is held before, of a step of `batch_tokens` tokens on CUDA.

    `max_rows` of them may be decodes; `group_rows` is the most that read a prefix together, 0
    where none do.
    """
    device = decoder.parameters.embedding.device
    batch = largest_batch(batch_tokens, max_model_len, block_size, device)
    config = decoder.config
    shape = kv_pool_shape(
        num_blocks=_blocks_per_row(batch_tokens, max_model_len, block_size),
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        block_size=block_size,
        head_dim=config.head_dim,
    )
    pool_dtype = decoder.parameters.embedding.dtype
    pool = empty_pool(shape, pool_dtype, device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    decoder.logits(batch.token_ids, batch.layout, pool, batch.outputs)
    torch.cuda.synchronize(device)
    forward = torch.cuda.max_memory_allocated(device) - before
    del pool
    torch.cuda.empty_cache()
    partial = partial_bytes(config, pool_dtype, max_rows=max_rows, group_rows=group_rows)
    return forward + partial + sampling_bytes(max_rows, config.vocab_size)


def sampling_bytes(max_rows: int, vocab_size: int) -> int:
    """An upper bound of the bytes that sampling `max_rows` rows takes."""
    return SAMPLING_COPIES * 4 * max_rows * vocab_size


def partial_bytes(
    config: ModelConfig, dtype: torch.dtype, *, max_rows: int, group_rows: int
) -> int:
    """An upper bound of the bytes that `max_rows` decode rows take for outputs not merged yet.

    A float32 output and its log-sum-exp for every row of every unit that the kernel may deal
    (`kernels.decode_attention`), in one layer: the next one writes over it.
    """
    own = decode_tuning(config.head_dim, dtype)
    slots = own.most_units(config.num_kv_heads) + max_rows
    if group_rows:
        shared = shared_tuning(config.head_dim, dtype)
        units = shared.most_units(config.num_kv_heads) + most_groups(max_rows)
        slots += units * group_rows
    return 4 * slots * config.num_heads * (config.head_dim + 1)


def _blocks_per_row(batch_tokens: int, max_model_len: int, block_size: int) -> int:
    return -(-min(batch_tokens, max_model_len) // block_size)


def largest_batch(
    batch_tokens: int, max_model_len: int, block_size: int, device: torch.device
) -> Batch:
    """`batch_tokens` tokens as rows of up to `max_model_len`, all in the same first blocks."""
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
        max_query_len=max(lengths),
        max_context_len=max(lengths),
    )
    token_ids = torch.zeros(batch_tokens, dtype=torch.int64, device=device)
    outputs = (starts[1:] - 1).to(device, torch.int64)
    return Batch(token_ids, layout, outputs, outputs, outputs[:0], outputs[:0])
