"""A start gone through in small: which layers and rooms stand for all of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from engine.batch import build_batch
from engine.graphs.inputs import Room
from engine.graphs.steps import MANY_DECODES, all_rooms
from engine.model.decoder import UNLIKE_LAYERS, Decoder, first_layers
from engine.rehearsal import (
    Bounds,
    rehearse_copies,
    rehearse_products,
    rehearse_rooms,
    telling,
)
from engine.step import Row
from kernels import linear
from kernels.batch_layout import BatchLayout, layer_view
from kernels.ops import torch_ops
from tests.engine.conftest import MakeCheckpoint
from tests.engine.hand_driven import BLOCK_SIZE, HandDriven, build_runner, random_prompt

CPU = torch.device("cpu")
BOUNDS = Bounds(0, max_running=12, max_model_len=64, block_size=16, graph_tokens=128, group_rows=4)


@dataclass
class Attentions:
    """Attention by torch, remembering (decodes, other tokens, other rows, shares) of each call."""

    seen: list[tuple[int, int, int, bool]] = field(default_factory=list)
    kept: list[tuple[int, ...]] = field(default_factory=list)  # where keys were written, at most
    strides: set[tuple[int, ...]] = field(default_factory=set)  # of the layers of the pool

    def __call__(self, q: Tensor, kv: Tensor, layout: BatchLayout, scale: float) -> Tensor:
        decodes = layout.num_decodes
        shares = layout.shared is not None
        new = q.shape[0] - decodes
        self.seen.append((decodes, new, layout.num_rows - decodes, shares))
        self.kept.append((int(layout.slots.min()), int(layout.slots.max())))
        self.strides.add(kv.stride())
        return torch_ops().paged_attention(q, kv, layout, scale)


def decoder_of(checkpoint: MakeCheckpoint, attentions: Attentions) -> Decoder:
    ops = replace(torch_ops(), paged_attention=attentions)
    return build_runner(checkpoint("llama").model_dir, ops=ops).decoder


def test_the_first_layers_are_those_of_the_whole(checkpoint: MakeCheckpoint) -> None:
    whole = decoder_of(checkpoint, Attentions())
    short = first_layers(whole, UNLIKE_LAYERS)
    assert (whole.config.num_layers, short.config.num_layers) == (3, 2)
    assert len(whole.parameters.layers) == 3
    assert all(
        a is b for a, b in zip(short.parameters.layers, whole.parameters.layers, strict=False)
    )
    assert short.parameters.head is whole.parameters.head
    assert first_layers(whole, 5).config.num_layers == 3


def test_two_layers_compute_what_the_first_two_of_the_whole_do(checkpoint: MakeCheckpoint) -> None:
    """The control of the shortcut: what is left out are the layers behind, nothing else."""
    runner = build_runner(checkpoint("llama").model_dir)
    driven = HandDriven(runner)
    sequence = driven.add(random_prompt(9))
    batch = build_batch([Row(sequence, 0, 9)], BLOCK_SIZE, CPU)
    pool = runner.pool.tensor
    whole = runner.decoder.logits(batch.token_ids, batch.layout, pool, batch.outputs)
    written = pool.clone()
    short = first_layers(runner.decoder, UNLIKE_LAYERS)
    fewer = short.logits(batch.token_ids, batch.layout, pool, batch.outputs)
    assert torch.equal(pool, written)
    assert fewer.shape == whole.shape
    assert not torch.equal(fewer, whole)


def test_every_telling_room_is_computed_once_a_layer(checkpoint: MakeCheckpoint) -> None:
    attentions = Attentions()
    rehearse_rooms(decoder_of(checkpoint, attentions), BOUNDS)
    rooms = telling(all_rooms(BOUNDS.max_running, BOUNDS.graph_tokens, BOUNDS.group_rows))
    expected = [
        (room.num_decodes, room.num_new, room.num_prefills, room.group_rows > 0) for room in rooms
    ]
    assert attentions.seen[::UNLIKE_LAYERS] == expected
    assert len(attentions.seen) == len(expected) * UNLIKE_LAYERS
    assert {kind for *_, kind in expected} == {True, False}


def test_a_rehearsals_pool_has_the_strides_of_the_one_to_come(checkpoint: MakeCheckpoint) -> None:
    """They are constants of kernels, which would be compiled again for others."""
    attentions = Attentions()
    runner = build_runner(
        checkpoint("llama").model_dir, ops=replace(torch_ops(), paged_attention=attentions)
    )
    rehearse_rooms(runner.decoder, BOUNDS)
    pool = runner.pool.tensor
    assert pool.shape[1] > UNLIKE_LAYERS
    assert attentions.strides == {layer_view(pool, 0).stride()}


def test_a_copy_within_the_pool_is_rehearsed_with_blocks_of_the_same_size(
    checkpoint: MakeCheckpoint,
) -> None:
    """Or the first prompt that parts from another within a block would wait for the compiler."""
    sizes: list[int] = []

    def copied(pool: Tensor, source: Tensor, target: Tensor) -> None:
        sizes.append(pool.stride(0))
        assert source.tolist() == target.tolist() == [0]

    ops = replace(torch_ops(), copy_blocks=copied)
    runner = build_runner(checkpoint("llama").model_dir, ops=ops)
    rehearse_copies(runner.decoder, BOUNDS)
    assert sizes == [runner.pool.tensor.stride(0)]


@pytest.mark.parametrize(("max_running", "most"), [(12, 12), (256, linear.MAX_ROWS)])
def test_products_of_few_rows_are_rehearsed(
    checkpoint: MakeCheckpoint, max_running: int, most: int
) -> None:
    """Kernels are compiled for these, and without recorded steps no room asks for them."""
    rows: list[int] = []

    def computed(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows.append(x.shape[0])
        return linear.reference(x, weight, bias)

    ops = replace(torch_ops(), linear=computed, linear_in_parts=computed)
    runner = build_runner(checkpoint("llama").model_dir, ops=ops)
    rehearse_products(runner.decoder, replace(BOUNDS, max_running=max_running))
    assert set(rows) == set(range(1, most + 1))
    assert len(rows) == 5 * most, "four products of a layer, and the head's"


def test_a_rehearsal_writes_to_its_own_block_alone(checkpoint: MakeCheckpoint) -> None:
    attentions = Attentions()
    rehearse_rooms(decoder_of(checkpoint, attentions), BOUNDS)
    assert attentions.kept
    assert set(attentions.kept) == {(0, 0)}


def sizes_alone(rooms: list[Room]) -> set[tuple[int, int]]:
    return {(room.num_decodes, room.group_rows) for room in rooms if not room.num_new}


def prefills(rooms: list[Room]) -> set[tuple[int, int, int]]:
    return {(room.num_new, room.num_prefills, room.group_rows) for room in rooms if room.num_new}


@pytest.mark.parametrize("max_running", [256, 100, 3, 1])
@pytest.mark.parametrize("group_rows", [16, 0])
def test_telling_rooms_have_few_decodes_and_the_usual_new_tokens(
    max_running: int, group_rows: int
) -> None:
    rooms = all_rooms(max_running, 1024, group_rows)
    kept = telling(rooms)
    assert set(kept) <= set(rooms)
    few = {(count, shared) for count, shared in sizes_alone(rooms) if count <= MANY_DECODES}
    assert sizes_alone(kept) == few
    of_few = {(new, count) for new, count, _ in prefills(kept)}
    assert {(64, 1), (64, 2), (128, 1), (256, 2), (1024, 32)} <= of_few
    assert len({room.num_decodes for room in kept if room.num_new and not room.group_rows}) == 1


def test_they_are_a_fifth_of_all_rooms() -> None:
    rooms = all_rooms(256, 1024, 16)
    assert len(telling(rooms)) < 0.2 * len(rooms)
    assert telling([]) == []
