"""Runs of blocks copy the same bytes as single copies, and none of the runs could be longer."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from storage.runs import Runs, runs_of

BLOCKS = 12

slots = st.permutations(range(BLOCKS))


def runs_between(sources: list[int], targets: list[int], count: int) -> Runs:
    """Make runs over one-byte blocks: source i contains i, every target contains 255."""
    source = torch.arange(BLOCKS, dtype=torch.uint8).view(BLOCKS, 1)
    target = torch.full((BLOCKS, 1), 255, dtype=torch.uint8)
    return runs_of(target, source, np.array(targets[:count]), np.array(sources[:count]))


def copied(runs: Runs) -> list[int]:
    """Copy all runs; return the targets' contents."""
    for to, of in runs.views():
        assert to.is_contiguous()
        to.copy_(of)
    return runs.targets.flatten().tolist()


@given(slots, slots, st.integers(1, BLOCKS))
def test_runs_copy_what_single_copies_would_and_are_maximal(
    sources: list[int], targets: list[int], count: int
) -> None:
    pairs = list(zip(sources[:count], targets[:count], strict=True))
    runs = runs_between(sources, targets, count)
    want = [255] * BLOCKS
    for a, b in pairs:
        want[b] = a
    assert copied(runs) == want
    followed = sum((a + 1, b + 1) in pairs for a, b in pairs)
    assert len(runs) == count - followed
    assert runs.num_blocks == count


@given(slots, slots, st.integers(1, BLOCKS), st.integers(0, BLOCKS))
def test_single_blocks_and_parts_of_them_are_the_same_copies(
    sources: list[int], targets: list[int], count: int, cut: int
) -> None:
    want = copied(runs_between(sources, targets, count))
    single = runs_between(sources, targets, count).single()
    assert len(single) == single.num_blocks == count
    first, rest = single.part(slice(cut)), single.part(slice(cut, None))
    assert len(first) + len(rest) == count
    copied(first)
    assert copied(rest) == want
