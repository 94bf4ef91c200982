"""10,000 random operations on a tree with checkpoints, checked after each against a plain model.

The pools are small, so that states are refused, evicted and read while others are made.
"""

from __future__ import annotations

import pytest

from tests.prefix_cache.states_driver import StatesDriver

SHAPES = [
    # seed, blocks, state slots, block size, longest prompt, with quotas
    (1, 48, 16, 2, 16, False),
    (2, 32, 14, 2, 12, False),
    (3, 64, 40, 4, 24, False),
    (4, 48, 20, 2, 16, True),
    (5, 32, 16, 1, 10, True),
]


@pytest.mark.parametrize(("seed", "blocks", "states", "block_size", "longest", "quotas"), SHAPES)
def test_no_hit_is_longer_than_its_state(
    seed: int, blocks: int, states: int, block_size: int, longest: int, quotas: bool
) -> None:
    driver = StatesDriver(
        seed,
        num_blocks=blocks,
        num_states=states,
        block_size=block_size,
        max_tokens=longest,
        quotas=quotas,
    )
    driver.run(2_000)
    seen, counts = driver.seen, driver.cache.checkpoints.counts
    assert min(seen["hits"], seen["matched beyond a state"], seen["failed"]) > 10
    assert min(seen["left out"], counts.evicted, counts.made) > 10
