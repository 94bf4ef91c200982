"""Decodes that read a shared prefix once give the same results as separate reads, eagerly and
captured.
"""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from engine.execution.graphs.bucket import GraphBucket
from engine.execution.graphs.buckets import buckets_for, sharing_buckets
from engine.execution.graphs.runner import GraphRunner
from engine.execution.runner import ModelRunner
from engine.execution.shared_prefixes import SharedPrefixes, SharingRule
from engine.sequences.sequence import Sequence
from engine.step_sizes import NEW_TOKENS, TOTALS
from kernels.attention.batch_layout import BatchLayout
from kernels.ops import Ops, torch_ops, triton_ops
from tests.doubles.engine.device.rerun import Rerun
from tests.doubles.kernels.sharing_checker import SharingChecker
from tests.doubles.kernels.splits_checker import UnitsChecker
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.hand_driven import (
    BLOCK_SIZE,
    HandDriven,
    build_runner,
    output,
    random_prompt,
    sampling,
    with_graphs,
)

RULE = SharingRule(BLOCK_SIZE, 2**26, 2 * BLOCK_SIZE, 4)  # sharing even two blocks pays


def runner_of(model_dir: Path, ops: Ops, *, shares: bool) -> ModelRunner:
    runner = build_runner(model_dir, ops=ops)
    return replace(runner, prefixes=SharedPrefixes(RULE) if shares else None)


def with_attention(attention: SharingChecker) -> Ops:
    return replace(torch_ops(), paged_attention=attention)


def interpreted() -> Ops:
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("kernels run on CPU tensors in the interpreter only")
    reference, kernel = torch_ops().paged_attention, triton_ops().paged_attention

    def attend(q: Tensor, kv: Tensor, layout: BatchLayout, *how: Any) -> Tensor:
        """Use the kernel only where rows share keys, since it is slow in the interpreter."""
        attention = reference if layout.shared is None else kernel
        return attention(q, kv, layout, *how)

    return replace(torch_ops(), paged_attention=attend)


def forest(driven: HandDriven, max_tokens: int) -> list[Sequence]:
    """Make seven sequences in mixed order: six on two shared prefixes, and one alone."""
    stems = [driven.add(random_prompt(70, seed=n), sampling(max_tokens)) for n in range(2)]
    for stem in stems:
        driven.step((stem, 70))
    grown = [
        driven.grow(stems[n % 2], 4 if n % 2 else 3, random_prompt(3 + n, seed=9 + n), max_tokens)
        for n in range(5)
    ]
    alone = driven.add(random_prompt(21, seed=8), sampling(max_tokens))
    return [grown[0], alone, *grown[1:], *stems]


def run(driven: HandDriven, max_tokens: int = 5) -> list[list[int]]:
    """Add one sequence to each step, so that prompts run beside decodes; end the sequences one
    after the other.
    """
    sequences = forest(driven, max_tokens)
    coming = list(sequences)
    running: list[Sequence] = []
    while coming or running:
        running += [coming.pop(0)] if coming else []
        driven.step(*((s, s.num_tokens - s.num_computed) for s in running))
        running = [s for s in running if s.num_output < s.sampling.max_tokens]
    return [output(sequence) for sequence in sequences]


def together(driven: HandDriven, max_tokens: int = 2) -> list[list[int]]:
    """Compute each prompt in one step, then decode all sequences together."""
    sequences = forest(driven, max_tokens)
    for sequence in sequences:
        if sequence.num_tokens - sequence.num_computed > 1:
            driven.step((sequence, sequence.num_tokens - sequence.num_computed))
    while left := [s for s in sequences if s.num_output < s.sampling.max_tokens]:
        driven.step(*((s, 1) for s in left))
    return [output(sequence) for sequence in sequences]


@pytest.mark.parametrize("max_tokens", [0, 128], ids=["eager", "recorded"])
def test_shared_layouts_are_true_and_rows_get_their_own_tokens(
    checkpoint: MakeCheckpoint, max_tokens: int
) -> None:
    model_dir = checkpoint("llama").model_dir
    expected = run(HandDriven(runner_of(model_dir, torch_ops(), shares=False)))
    checker = SharingChecker(RULE.most_rows)
    runner = runner_of(model_dir, with_attention(checker), shares=True)
    launcher = with_graphs(runner, Rerun(), max_tokens=max_tokens) if max_tokens else runner
    assert run(HandDriven(runner, launcher)) == expected
    assert checker.shared >= 5 * len(runner.decoder.config.layers)
    assert len({tuple(tokens) for tokens in expected}) == len(expected), "else rows could swap"


@pytest.mark.parametrize("shares", [False, True], ids=["alone", "together"])
@pytest.mark.parametrize("max_tokens", [0, 128], ids=["eager", "recorded"])
def test_units_hold_all_keys_of_each_step(
    checkpoint: MakeCheckpoint, max_tokens: int, shares: bool
) -> None:
    """Compare the units of attention with the keys, for rows and a shared prefix long enough to be
    split.
    """
    checker = UnitsChecker()
    ops = replace(torch_ops(), paged_attention=checker)
    runner = runner_of(checkpoint("llama").model_dir, ops, shares=shares)
    launcher = with_graphs(runner, Rerun(), max_tokens=max_tokens) if max_tokens else runner
    driven = HandDriven(runner, launcher)
    stem = driven.add(random_prompt(260), sampling(4))
    driven.step((stem, 260))
    grown = [driven.grow(stem, 16, random_prompt(3 + 200 * n, seed=n), 4) for n in range(2)]
    for sequence in grown:
        driven.step((stem, 1), (sequence, sequence.num_tokens - sequence.num_computed))
    driven.step(*((sequence, 1) for sequence in (stem, *grown)))
    assert checker.own > 0
    assert (checker.shared > 0) == shares


@pytest.mark.parametrize("max_tokens", [0, 8], ids=["eager", "recorded"])
def test_the_kernel_that_reads_once_gives_the_same_tokens(
    checkpoint: MakeCheckpoint, max_tokens: int
) -> None:
    model_dir = checkpoint("llama").model_dir
    expected = together(HandDriven(runner_of(model_dir, torch_ops(), shares=False)))
    runner = runner_of(model_dir, interpreted(), shares=True)
    launcher = (
        with_graphs(runner, Rerun(), max_tokens=max_tokens, max_model_len=96)
        if max_tokens
        else runner
    )
    assert together(HandDriven(runner, launcher)) == expected


def found(graphs: GraphRunner, needed: GraphBucket) -> GraphBucket | None:
    step = graphs.steps.find(needed)
    return None if step is None else step.inputs.bucket


def test_steps_that_share_and_steps_that_do_not_take_separate_rooms(
    checkpoint: MakeCheckpoint,
) -> None:
    runner = runner_of(checkpoint("llama").model_dir, torch_ops(), shares=True)
    graphs = with_graphs(runner, Rerun(), max_tokens=128)
    assert found(graphs, GraphBucket(3)) == GraphBucket(4)
    assert found(graphs, GraphBucket(3, group_rows=4)) == GraphBucket(4, group_rows=4)
    assert found(graphs, GraphBucket(9, 70, 1, group_rows=4)) == GraphBucket(
        16, 128, 2, group_rows=4
    )
    assert found(graphs, GraphBucket(9, 70, 1)) == GraphBucket(16, 128, 1)
    assert found(graphs, GraphBucket(25, group_rows=4)) is None


@pytest.mark.parametrize("batch_slots", [1, 6, 24, 256])
def test_rooms_are_not_too_many_and_each_is_there_once(batch_slots: int) -> None:
    buckets = [*buckets_for(batch_slots, 1024), *sharing_buckets(batch_slots, 1024, 16)]
    assert len(set(buckets)) == len(buckets) <= 260
    assert all(bucket.num_decodes <= batch_slots for bucket in buckets)
    for new in NEW_TOKENS:
        prefills = {bucket.num_prefills for bucket in buckets if bucket.num_new == new}
        assert {1, 2} < prefills
        assert len(prefills) == 3


def test_large_mixed_rooms_have_the_totals_that_products_are_fast_for() -> None:
    mixed = [bucket for bucket in buckets_for(256, 1024) if bucket.num_new]
    assert {bucket.num_tokens for bucket in mixed if bucket.num_tokens >= TOTALS[0]} == set(TOTALS)
    assert min(bucket.num_new for bucket in mixed) == NEW_TOKENS[0]
    assert max(bucket.num_new for bucket in mixed) == 1024


@pytest.mark.parametrize("decodes", [0, 3, 33, 64, 100, 256])
@pytest.mark.parametrize("new", [1, 64, 200, 384, 700])
def test_every_small_step_has_a_room(decodes: int, new: int) -> None:
    buckets = list(buckets_for(256, 1024))
    for prefills in (1, 2, 8):
        needed = GraphBucket(decodes, new, min(prefills, new))
        assert any(bucket.holds(needed) for bucket in buckets)


def test_a_room_s_fields_lie_apart() -> None:
    bucket = GraphBucket(9, 64, 2, group_rows=4)
    places = sorted(bucket.offsets().values(), key=lambda place: place.start)
    for one, other in pairwise(places):
        assert one.stop <= other.start
    assert places[-1].stop <= bucket.total
    assert all(place.start % 4 == 0 for place in places)
    assert set(bucket.sizes()) - set(GraphBucket(9, 64, 2).sizes()) == {
        "group_starts",
        "key_ends",
        "own_starts",
    }
