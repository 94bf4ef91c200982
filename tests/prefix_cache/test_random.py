"""15,000 random operations, compared with a plain oracle after each; only two different tokens
exist.

The pools are small, so that hits, splits, evictions, refusals and flushes of leased blocks are
frequent, which each run asserts. Complete checks take longer than the operations, so long runs
check after every eighth operation, short runs after each. In `make test-zoo` long runs are nine
times as long.
"""

from __future__ import annotations

import pytest

from tests.prefix_cache.support.driver import Driver
from tests.prefix_cache.support.scene import ConstantDigest

SHAPES = [
    # seed, blocks, block size, longest prompt, operations
    (1, 16, 2, 10, 3_400),
    (2, 16, 2, 16, 3_400),
    (3, 24, 2, 12, 2_600),
    (4, 20, 3, 16, 2_000),
    (5, 24, 4, 24, 1_700),
    (6, 64, 2, 16, 2_000),
]


@pytest.mark.parametrize("times", [1, pytest.param(9, marks=pytest.mark.zoo)])
@pytest.mark.parametrize(("seed", "blocks", "block_size", "longest", "operations"), SHAPES)
def test_the_cache_does_what_the_plain_model_says(
    seed: int, blocks: int, block_size: int, longest: int, operations: int, times: int
) -> None:
    operations *= times
    driver = Driver(
        seed, num_blocks=blocks, block_size=block_size, max_tokens=longest, check_every=8
    )
    driver.run(operations)
    seen = (driver.hits, driver.partial_hits, driver.duplicates, driver.detached)
    assert min(*seen, driver.lapsed) > operations // 500
    assert sum(driver.oracle.caused.values()) > operations // 50
    followed = driver.waiting.seen
    assert min(followed[what] for what in ("gone", "held", "split", "went on")) > 5


@pytest.mark.parametrize("shape", SHAPES)
def test_every_count_is_right_after_every_operation(shape: tuple[int, int, int, int, int]) -> None:
    seed, blocks, block_size, longest, _ = shape
    driver = Driver(seed + 100, num_blocks=blocks, block_size=block_size, max_tokens=longest)
    driver.run(600)
    assert min(driver.hits, driver.partial_hits) > 5


def test_with_a_constant_hash_everything_is_still_right() -> None:
    driver = Driver(7, num_blocks=24, block_size=2, max_tokens=12, digest=ConstantDigest())
    driver.run(1_000)
    assert min(driver.hits, driver.partial_hits, driver.duplicates) > 5


def test_the_run_is_the_same_each_time() -> None:
    first, second = (Driver(8, num_blocks=24, block_size=2, max_tokens=12) for _ in range(2))
    first.run(300)
    second.run(300)
    assert first.oracle.owners() == second.oracle.owners()


def test_with_room_for_all_nothing_is_refused_or_evicted() -> None:
    driver = Driver(9, num_blocks=4096, block_size=2, max_tokens=12)
    driver.run(400)
    assert driver.refused == 0
    assert driver.oracle.caused == {}
    assert driver.hits > 5
