"""The split outputs of decodes never take more memory than their bound, also on a device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.execution.shared_prefixes import Sharing, most_groups
from engine.models.config import ModelConfig
from engine.models.layers.attention import AttentionConfig
from engine.startup.memory.activation import partial_bytes
from kernels.attention.batch_layout import BatchLayout, SharedPrefix
from kernels.attention.decode import decode_attention
from kernels.attention.tuning import rows_together
from kernels.attention.variant import AttentionVariant
from kernels.ops import triton_ops
from tests.doubles.engine.device.shared_prefix import with_units
from tests.engine.rigs.origins import attending

BLOCK_SIZE = 16
EIGHT_B = attending(num_heads=32, num_kv_heads=8, head_dim=128)
MODELS = [
    EIGHT_B,
    attending(num_heads=32, num_kv_heads=32, head_dim=128),
    attending(num_heads=16, num_kv_heads=2, head_dim=128),
    attending(num_heads=32, num_kv_heads=8, head_dim=256),
    attending(num_heads=8, num_kv_heads=4, head_dim=64),
]


def heads_of(model: ModelConfig) -> AttentionConfig:
    return model.layers[0].attention


def together(model: ModelConfig) -> int:
    return rows_together(heads_of(model).num_heads // heads_of(model).num_kv_heads)


def decodes(
    model: ModelConfig, rows: int, context: int, *, shares: bool, device: str
) -> BatchLayout:
    """Make a layout of decodes over the same blocks; if `shares`, half of the blocks are read
    together.
    """
    blocks = -(-context // BLOCK_SIZE)
    positions = torch.full((rows,), context - 1, device=device)
    layout = BatchLayout(
        query_starts=torch.arange(rows + 1, dtype=torch.int32, device=device),
        context_lens=torch.full((rows,), context, dtype=torch.int32, device=device),
        block_tables=torch.arange(blocks, dtype=torch.int32, device=device).repeat(rows, 1),
        positions=positions,
        slots=positions,
        num_decodes=rows,
        max_context_len=context,
    )
    if not shares:
        return layout
    starts = np.arange(0, rows + 1, together(model), dtype=np.int32)
    key_ends = np.full(len(starts) - 1, blocks // 2 * BLOCK_SIZE, np.int32)
    fields = Sharing(np.arange(rows), starts, key_ends, together(model)).fields(rows)
    tensors = {name: torch.from_numpy(values).to(device) for name, values in fields.items()}
    return replace(layout, shared=SharedPrefix(**tensors, max_group_rows=together(model)))


def bound(model: ModelConfig, rows: int, *, shares: bool) -> int:
    group_rows = together(model) if shares else 0
    return partial_bytes(model, torch.bfloat16, max_rows=rows, group_rows=group_rows)


def query(model: ModelConfig, rows: int, device: str) -> Tensor:
    return torch.zeros(
        (rows, heads_of(model).num_heads, heads_of(model).head_dim),
        dtype=torch.bfloat16,
        device=device,
    )


def layer(model: ModelConfig, context: int, device: str) -> Tensor:
    shape = (
        -(-context // BLOCK_SIZE),
        2,
        heads_of(model).num_kv_heads,
        BLOCK_SIZE,
        heads_of(model).head_dim,
    )
    return torch.zeros(shape, dtype=torch.bfloat16, device=device)


def test_the_bound_for_an_8b_model_with_sharing_is_about_100_megabytes() -> None:
    assert 5e6 < bound(EIGHT_B, 256, shares=False) < 10e6
    assert 100e6 < bound(EIGHT_B, 256, shares=True) < 125e6


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("rows", [1, 64, 256])
@pytest.mark.parametrize("context", [512, 131_072])
@pytest.mark.parametrize("shares", [False, True])
def test_no_layout_takes_more_memory_than_the_bound(
    model: ModelConfig, rows: int, context: int, shares: bool
) -> None:
    """Compare the memory of layouts with the bound.

    Tensors on the meta device stand for the layout's memory, as computed for the kernel's launch.
    """
    layout = decodes(model, rows, context, shares=shares, device="meta")
    parts = decode_attention.launch_parts(
        query(model, rows, "meta"), layer(model, 16, "meta"), layout
    )
    slots = sum((p.target(heads_of(model).num_kv_heads, context) + p.count) * p.rows for p in parts)
    assert len(parts) == 1 + shares
    assert slots * 4 * heads_of(model).num_heads * (heads_of(model).head_dim + 1) <= bound(
        model, rows, shares=shares
    )
    if shares:
        assert parts[0].count == most_groups(rows)


@pytest.mark.gpu
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("shares", [False, True])
def test_memory_allocated_on_a_device_is_within_the_bound(model: ModelConfig, shares: bool) -> None:
    rows, context = 256, 8192
    layout = decodes(model, rows, context, shares=shares, device="cuda")
    q, kv = query(model, rows, "cuda"), layer(model, context, "cuda")
    layout = with_units(layout, kv, heads_of(model).num_heads)
    attend = triton_ops().paged_attention
    # compiles the kernel, and allocates its persistent memory
    attend(q, kv, layout, AttentionVariant(0.1), None)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = attend(q, kv, layout, AttentionVariant(0.1), None)
    torch.cuda.synchronize()
    taken = torch.cuda.max_memory_allocated() - before - out.numel() * out.element_size()
    counted = bound(model, rows, shares=shares)
    # The indices of the splits, and counters, take up to 1 MiB more.
    assert counted / 4 < taken <= counted + (1 << 20)
