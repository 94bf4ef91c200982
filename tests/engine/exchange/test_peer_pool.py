"""Adjacent blocks of another GPU's pool are copied together. Host memory is not shared.

These tests need no GPU.
"""

from __future__ import annotations

import numpy as np
import torch

from engine.exchange.peer_pool import pieces_of, share, this_host


def test_a_pool_in_memory_is_not_shared() -> None:
    assert share(torch.zeros(4, 64, dtype=torch.uint8)) is None


def test_blocks_that_follow_each_other_on_both_sides_are_one_copy() -> None:
    sources, targets = np.array([4, 5, 6, 9, 10, 3]), np.array([1, 2, 3, 4, 6, 7])
    pieces = pieces_of(sources, targets, 1000, 5000, 10)
    assert pieces.sources.tolist() == [1040, 1090, 1100, 1030]
    assert pieces.targets.tolist() == [5010, 5040, 5060, 5070]
    assert pieces.sizes.tolist() == [30, 10, 10, 10]
    none = pieces_of(sources[:0], targets[:0], 1000, 5000, 10)
    assert (none.sources.size, none.targets.size, none.sizes.size) == (0, 0, 0)


def test_a_machine_has_one_name() -> None:
    assert this_host() == this_host() != b""
