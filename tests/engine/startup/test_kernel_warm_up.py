"""The warm-up: a few layers and buckets stand for all others, and every GEMM runs once."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.execution.graphs.bucket import GraphBucket
from engine.execution.graphs.buckets import MANY_DECODES, all_buckets
from engine.models.checkpoints.weights import load_parameters
from engine.models.forward.build_decoder import build_decoder
from engine.models.forward.decoder import Decoder
from engine.models.forward.shortened_decoder import shortened
from engine.models.modules import walk
from engine.models.served.reading import read_model_config
from engine.models.weight_formats.fp8_checkpoints import ONLINE_FP8
from engine.models.weight_formats.plain import PlainLinear
from engine.startup.kernel_warm_up import (
    EVERY,
    MOST_S,
    compute_each_once,
    dry_run_buckets,
    dry_run_copies,
    dry_run_gemms,
    row_counts,
    telling,
)
from engine.startup.memory.activation import StepBounds
from kernels.attention.batch_layout import BatchLayout
from kernels.linear import fp8_linear, hopper_tile_configs, int4_linear, linear
from kernels.linear.fp8_matrix import Fp8Matrix
from kernels.linear.fp8_rows import Fp8Rows
from kernels.linear.int4_matrix import Int4Matrix
from kernels.ops import torch_ops
from tests.doubles.layouts import alike_layers
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.files.int4_checkpoints import KINDS, make_int4
from tests.engine.rigs.hand_driven import (
    BLOCK_SIZE,
    HandDriven,
    build_runner,
    data_row,
    random_prompt,
)

CPU = torch.device("cpu")
UNLIKE_LAYERS = 2  # number of layers of a trial, enough if all layers are alike
LAYOUT = alike_layers(3, 2, head_dim=16, dtype="float32", block_size=BLOCK_SIZE)
BOUNDS = StepBounds(
    0, max_running=12, max_model_len=64, layout=LAYOUT, graph_tokens=128, group_rows=4
)


@dataclass
class Attentions:
    """Attention by torch that records each call's (decodes, other tokens, other rows, shares)."""

    seen: list[tuple[int, int, int, bool]] = field(default_factory=list)
    # the first and last slots to which keys were written
    kept: list[tuple[int, ...]] = field(default_factory=list)
    strides: set[tuple[int, ...]] = field(default_factory=set)  # strides of the pool's layers

    def __call__(self, q: Tensor, kv: Tensor, layout: BatchLayout, *how: Any) -> Tensor:
        decodes = layout.num_decodes
        shares = layout.shared is not None
        new = q.shape[0] - decodes
        self.seen.append((decodes, new, layout.num_rows - decodes, shares))
        self.kept.append((int(layout.slots.min()), int(layout.slots.max())))
        self.strides.add(kv.stride())
        return torch_ops().paged_attention(q, kv, layout, *how)


def decoder_of(checkpoint: MakeCheckpoint, attentions: Attentions) -> Decoder:
    ops = replace(torch_ops(), paged_attention=attentions)
    return build_runner(checkpoint("llama").model_dir, ops=ops).decoder


def test_the_first_layers_are_those_of_the_whole(checkpoint: MakeCheckpoint) -> None:
    whole = decoder_of(checkpoint, Attentions())
    short = shortened(whole)
    assert (len(whole.parameters.layers), len(short.parameters.layers)) == (3, UNLIKE_LAYERS)
    assert all(
        a is b for a, b in zip(short.parameters.layers, whole.parameters.layers, strict=False)
    )
    assert short.parameters.head is whole.parameters.head
    assert shortened(short).parameters.layers == short.parameters.layers


def test_two_layers_compute_what_the_first_two_of_the_whole_do(checkpoint: MakeCheckpoint) -> None:
    """Compute the first two layers alone. Positive control: the shortcut leaves out the later
    layers.
    """
    runner = build_runner(checkpoint("llama").model_dir)
    driven = HandDriven(runner)
    sequence = driven.add(random_prompt(9))
    batch = driven.batch([data_row(sequence, 0, 9)])
    pool = runner.pool
    whole = runner.decoder.logits(batch.token_ids, batch.layout, pool.layers, batch.outputs)
    written = pool.tensor.clone()
    short = shortened(runner.decoder)
    fewer = short.logits(batch.token_ids, batch.layout, pool.layers, batch.outputs)
    assert torch.equal(pool.tensor, written)
    assert fewer.shape == whole.shape
    assert not torch.equal(fewer, whole)


def test_every_telling_room_is_computed_once_a_layer(checkpoint: MakeCheckpoint) -> None:
    attentions = Attentions()
    dry_run_buckets(decoder_of(checkpoint, attentions), BOUNDS)
    buckets = telling(all_buckets(BOUNDS.max_running, BOUNDS.graph_tokens, BOUNDS.group_rows))
    expected = [
        (room.num_decodes, room.num_new, room.num_prefills, room.group_rows > 0) for room in buckets
    ]
    assert attentions.seen[::UNLIKE_LAYERS] == expected
    assert len(attentions.seen) == len(expected) * UNLIKE_LAYERS
    assert {kind for *_, kind in expected} == {True, False}


def test_a_rehearsals_pool_has_the_strides_of_the_one_to_come(checkpoint: MakeCheckpoint) -> None:
    """Rehearse with the strides of the coming pool: strides are constants of kernels, so others
    would compile anew.
    """
    attentions = Attentions()
    runner = build_runner(
        checkpoint("llama").model_dir, ops=replace(torch_ops(), paged_attention=attentions)
    )
    dry_run_buckets(runner.decoder, BOUNDS)
    assert runner.pool.layout == LAYOUT
    assert len(runner.pool.layers) > UNLIKE_LAYERS
    assert attentions.strides == {runner.pool.layers[0].stride()}


def test_a_copy_within_the_pool_is_rehearsed_with_blocks_of_the_same_size(
    checkpoint: MakeCheckpoint,
) -> None:
    """Rehearse a copy within the pool. Otherwise the first prompt that forks within a block would
    wait to compile.
    """
    sizes: list[int] = []

    def copied(pool: Tensor, source: Tensor, target: Tensor) -> None:
        sizes.append(pool.stride(0))
        assert source.tolist() == target.tolist() == [0]

    ops = replace(torch_ops(), copy_blocks=copied)
    runner = build_runner(checkpoint("llama").model_dir, ops=ops)
    dry_run_copies(runner.decoder, BOUNDS)
    assert sizes == [runner.pool.tensor.stride(0)]


@pytest.mark.parametrize(("max_running", "most"), [(12, 12), (256, linear.MAX_ROWS)])
def test_products_of_few_rows_are_rehearsed(
    checkpoint: MakeCheckpoint, max_running: int, most: int
) -> None:
    """Rehearse products of few rows: their kernels are compiled, and without captured graphs no
    bucket uses them.
    """
    rows: list[int] = []

    def computed(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows.append(x.shape[0])
        return linear.reference(x, weight, bias)

    ops = replace(torch_ops(), linear=computed, linear_split_k=computed)
    runner = build_runner(checkpoint("llama").model_dir, ops=ops)
    dry_run_gemms(runner.decoder, replace(BOUNDS, max_running=max_running))
    assert set(rows) == set(range(1, most + 1))
    assert len(rows) == 5 * most, "four products of a layer, and the head's"


def test_products_in_int4_are_rehearsed_with_every_kernel_they_take(tmp_path: Path) -> None:
    """Rehearse int4 products with all their kernels, also with their own GEMM for many rows."""
    rows: list[int] = []

    def computed(x: Tensor, weight: Int4Matrix, bias: Tensor | None) -> Tensor:
        rows.append(x.shape[0])
        return int4_linear.reference(x, weight, bias)

    ops = replace(torch_ops(), linear_int4=computed, linear_int4_split_k=computed)
    runner = build_runner(make_int4(KINDS["gptq"], tmp_path).int4.model_dir, ops=ops)
    dry_run_gemms(runner.decoder, replace(BOUNDS, max_running=2))
    assert set(rows) == {1, 2, *int4_linear.TELLING_ROWS}
    assert len(rows) == 4 * len(set(rows)), "four products of a layer"


def test_products_in_fp8_are_rehearsed_with_every_kernel_they_take(
    checkpoint: MakeCheckpoint,
) -> None:
    rows: list[int] = []

    def computed(x: Fp8Rows, weight: Fp8Matrix, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        rows.append(x.values.shape[0])
        return fp8_linear.reference(x, weight, bias, dtype)

    ops = replace(torch_ops(), linear_fp8=computed, linear_fp8_split_k=computed)
    model_dir = checkpoint("llama").model_dir
    config = replace(read_model_config(model_dir), weight_format=ONLINE_FP8)
    parameters = load_parameters(model_dir, config, torch.float32, CPU)
    decoder = build_decoder(config, parameters, ops, config.max_positions)
    dry_run_gemms(decoder, replace(BOUNDS, max_running=2))
    assert set(rows) == {1, 2, *hopper_tile_configs.TELLING_ROWS}
    assert len(rows) == 4 * len(set(rows)), "four products of a layer"


def test_a_rehearsal_writes_to_its_own_block_alone(checkpoint: MakeCheckpoint) -> None:
    attentions = Attentions()
    dry_run_buckets(decoder_of(checkpoint, attentions), BOUNDS)
    assert attentions.kept
    assert set(attentions.kept) == {(0, 0)}


def sizes_alone(buckets: list[GraphBucket]) -> set[tuple[int, int]]:
    return {(room.num_decodes, room.group_rows) for room in buckets if not room.num_new}


def prefills(buckets: list[GraphBucket]) -> set[tuple[int, int, int]]:
    return {(room.num_new, room.num_prefills, room.group_rows) for room in buckets if room.num_new}


@pytest.mark.parametrize("max_running", [256, 100, 3, 1])
@pytest.mark.parametrize("group_rows", [16, 0])
def test_telling_buckets_have_few_decodes_and_the_usual_new_tokens(
    max_running: int, group_rows: int
) -> None:
    buckets = all_buckets(max_running, 1024, group_rows)
    kept = telling(buckets)
    assert set(kept) <= set(buckets)
    few = {(count, shared) for count, shared in sizes_alone(buckets) if count <= MANY_DECODES}
    assert sizes_alone(kept) == few
    of_few = {(new, count) for new, count, _ in prefills(kept)}
    assert {(64, 1), (64, 2), (128, 1), (256, 2), (1024, 32)} <= of_few
    assert len({room.num_decodes for room in kept if room.num_new and not room.group_rows}) == 1


def test_telling_buckets_are_a_fifth_of_all_buckets() -> None:
    buckets = all_buckets(256, 1024, 16)
    assert len(telling(buckets)) < 0.2 * len(buckets)
    assert telling([]) == []


@dataclass
class Computed:
    """A linear layer that records the number of rows for each weight."""

    rows: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        self.rows[weight.data_ptr()].append(x.shape[0])
        return torch_ops().linear(x, weight, bias)


def decoder_with(
    checkpoint: MakeCheckpoint, name: str, whole: Computed, parts: Computed
) -> Decoder:
    ops = replace(torch_ops(), linear=whole, linear_split_k=parts)
    return build_runner(checkpoint(name).model_dir, ops=ops).decoder


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_every_product_of_a_step_is_computed_in_all_sizes(
    checkpoint: MakeCheckpoint, name: str
) -> None:
    whole, parts = Computed(), Computed()
    decoder = decoder_with(checkpoint, name, whole, parts)
    compute_each_once(decoder, max_rows=12, batch_tokens=60)
    sizes = [*range(1, 13), 36, 60]
    qkv, output, gate_up, down = walk(decoder.parameters.layers[0], PlainLinear)
    head = decoder.parameters.head
    assert dict(whole.rows) == {gate_up.weight.data_ptr(): sizes, head.data_ptr(): sizes[:12]}
    in_parts = (qkv, output, down)
    assert dict(parts.rows) == {one.weight.data_ptr(): sizes for one in in_parts}


def test_a_slow_device_is_left_alone_after_a_while(checkpoint: MakeCheckpoint) -> None:
    whole, parts = Computed(), Computed()
    decoder = decoder_with(checkpoint, "llama", whole, parts)
    times = iter([0.0, MOST_S / 2, MOST_S * 0.9, MOST_S])
    compute_each_once(decoder, max_rows=12, batch_tokens=60, clock=lambda: next(times))
    assert whole.rows[decoder.parameters.head.data_ptr()] == [1, 2]
    assert set(map(tuple, parts.rows.values())) == {(1, 2)}


def test_whatever_samples_is_among_them() -> None:
    """Rehearse sampling for each number of rows, which is at most the number of running
    sequences.
    """
    counts = set(row_counts(256, 8_192))
    assert set(range(1, 257)) <= counts
    assert 8_192 - EVERY < max(counts) <= 8_192
    assert len(counts) == 256 + (8_192 - 256) // EVERY


@pytest.mark.parametrize(("max_rows", "tokens"), [(1, 1), (8, 8), (8, 31), (300, 100)])
def test_small_bounds_have_few_sizes(max_rows: int, tokens: int) -> None:
    assert list(row_counts(max_rows, tokens)) == list(range(1, max_rows + 1))
