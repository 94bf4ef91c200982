"""Random operations on a tree with checkpoints, compared with a plain model.

The pools are small, so states are refused, evicted and read while others are made. On the device
alone there are 6,000 operations, compared after each. With lower tiers, where copies of states
seldom fail in each way, there are 16,000, compared after every third. In `make test-zoo` there are
five times as many.
"""

from __future__ import annotations

from collections import Counter

import pytest

from prefix_cache.tiers.tier_pools import Tiers
from tests.prefix_cache.support.states_driver import StatesDriver

often = pytest.mark.parametrize("times", [1, pytest.param(5, marks=pytest.mark.zoo)])
SHAPES = [
    # seed, blocks, state slots, block size, longest prompt, with quotas
    (1, 48, 16, 2, 16, False),
    (2, 32, 14, 2, 12, False),
    (3, 64, 40, 4, 24, False),
    (4, 48, 20, 2, 16, True),
    (5, 32, 16, 1, 10, True),
]


@often
@pytest.mark.parametrize(("seed", "blocks", "states", "block_size", "longest", "quotas"), SHAPES)
def test_no_hit_is_longer_than_its_state(
    seed: int, blocks: int, states: int, block_size: int, longest: int, quotas: bool, times: int
) -> None:
    driver = StatesDriver(
        seed,
        num_blocks=blocks,
        num_states=states,
        block_size=block_size,
        max_tokens=longest,
        quotas=quotas,
    )
    driver.run(1_200 * times)
    seen, counts = driver.seen, driver.cache.checkpoints.counts
    assert min(seen["hits"], seen["matched beyond a state"], seen["failed"]) > 10
    assert min(seen["left out"], counts.evicted, counts.made) > 10


TIERS = [
    # seed, blocks, state slots, tiers, with quotas
    (11, 40, 12, Tiers(32, 0, host_states=6, ahead=2), False),
    (12, 40, 9, Tiers(0, 64, disk_states=9, state_blocks=3), False),
    (13, 32, 6, Tiers(24, 64, host_states=4, disk_states=12, state_blocks=2), False),
    (14, 40, 14, Tiers(24, 64, host_states=5, disk_states=10, ahead=3), True),
]


@often
@pytest.mark.parametrize(("seed", "blocks", "states", "tiers", "quotas"), TIERS)
def test_a_state_below_the_device_is_its_prefixs_or_not_there(
    seed: int, blocks: int, states: int, tiers: Tiers, quotas: bool, times: int
) -> None:
    driver = StatesDriver(seed, num_blocks=blocks, num_states=states, quotas=quotas, tiers=tiers)
    driver.run(4_000 * times, check_every=3)
    seen, ends = driver.seen, Counter[str]()
    for what, count in seen.items():
        if what.startswith("state"):
            ends[what.partition(" to ")[2]] += count
    assert min(seen["hits"], seen["loading"]) > 10
    assert min(ends["device: done"], ends["device: failed"] + ends["device: lost"]) > 1
    assert seen["failed loads"] > 0
    if tiers.host_states:
        assert min(seen["kept in host"], ends["host: done"]) > 5
        assert ends["host: failed"] > 1
    if tiers.disk_states:
        assert min(seen["kept in disk"], ends["disk: done"], seen["restored states"]) > 2
