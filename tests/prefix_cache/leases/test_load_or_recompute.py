"""Blocks are loaded if this is faster than recomputing, by measured rates and rare trials."""

from __future__ import annotations

import pytest

from prefix_cache.leases.load_or_recompute import CopyRate, LoadOrRecompute, Queue
from prefix_cache.leases.refusals import RETRY
from prefix_cache.names import Loads
from prefix_cache.tree.match import Whereabouts
from storage.move import Tier
from tests.doubles.constant_rate import NOTHING_MEASURED, ConstantRate

BLOCK = 16


def found(device: int = 0, coming: int = 0, host: int = 0, disk: int = 0) -> Whereabouts:
    return Whereabouts(device, coming, host, disk)


def measured(
    *, per_token: float, host: float | None = None, disk: float | None = None
) -> LoadOrRecompute:
    """Measure the seconds per computed token, and per block loaded from either tier."""
    rates = LoadOrRecompute(ConstantRate(per_token), block_size=BLOCK, block_bytes=1 << 20)
    for tier, seconds in ((Tier.HOST, host), (Tier.DISK, disk)):
        if seconds is not None:
            rates.copies[tier].add(10, seconds * 10)
    return rates


def test_the_first_measurement_takes_the_place_of_the_guess() -> None:
    rate = CopyRate(5.0)
    rate.add(10, 1.0)
    assert rate.per_block == pytest.approx(0.1)


class TestChoice:
    def test_before_anything_is_measured_all_is_loaded(self) -> None:
        rates = LoadOrRecompute(NOTHING_MEASURED, block_size=BLOCK, block_bytes=1 << 20)
        assert rates.load_blocks(found(device=2, host=3, disk=4), 1000) == 7

    def test_blocks_that_copy_faster_than_they_compute_are_loaded(self) -> None:
        rates = measured(per_token=1e-3, host=1e-3, disk=5e-3)
        assert rates.load_blocks(found(host=10, disk=10), 320) == 20

    def test_blocks_that_compute_faster_than_they_copy_are_not_loaded(self) -> None:
        rates = measured(per_token=1e-6, host=1e-3, disk=1e-2)
        assert rates.load_blocks(found(host=10, disk=10), 320) == 0

    def test_host_yes_and_disk_no(self) -> None:
        rates = measured(per_token=1e-4, host=1e-4, disk=1e-2)
        assert rates.load_blocks(found(host=10, disk=10), 320) == 10

    def test_behind_a_long_queue_of_tokens_a_slow_disk_is_quick_enough(self) -> None:
        rates = measured(per_token=1e-4, disk=1e-2)
        assert rates.load_blocks(found(disk=10), 160) == 0
        assert rates.load_blocks(found(disk=10), 160, Queue(tokens=2000)) == 10

    def test_as_much_is_loaded_as_arrives_while_others_are_computed(self) -> None:
        """Load as many blocks as arrive while other sequences are computed.

        Half of the prefix arrives before the sequence's turn. The rest would make it wait.
        """
        rates = measured(per_token=1e-4, host=2e-3)
        assert rates.load_blocks(found(host=10), 160) == 0
        assert rates.load_blocks(found(host=10), 160, Queue(tokens=100)) == 5
        assert rates.load_blocks(found(host=10), 160, Queue(tokens=200)) == 10

    def test_behind_a_long_queue_of_copies_it_is_not(self) -> None:
        rates = measured(per_token=1e-3, host=1e-3)
        assert rates.load_blocks(found(host=10), 160) == 10
        assert rates.load_blocks(found(host=10), 160, Queue(copies={Tier.HOST: 1000})) == 0

    @pytest.mark.parametrize(("asked", "loads"), [("always", 20), ("never", 0)])
    def test_always_and_never_override_the_estimate(self, asked: Loads, loads: int) -> None:
        for rates in (measured(per_token=1e-9), measured(per_token=1.0)):
            assert rates.load_blocks(found(host=10, disk=10), 320, asked=asked) == loads

    def test_nothing_below_is_nothing_to_load(self) -> None:
        assert measured(per_token=1.0).load_blocks(found(device=5, coming=2), 160) == 0

    def test_after_many_refusals_a_tier_is_tried_once(self) -> None:
        rates = measured(per_token=1e-6, host=1e-3)
        where = found(host=4)
        choices = []
        for _ in range(2 * RETRY):
            loads = rates.load_blocks(where, 64)
            rates.count(where, loads)
            choices.append(loads)
            if loads:
                rates.copies[Tier.HOST].add(loads, loads * 1e-3)
        assert 1 <= choices.count(4) <= 2 * RETRY / 8
        assert choices[0] == 0


def test_choices_are_counted_by_tier() -> None:
    rates = measured(per_token=1.0)
    rates.count(found(host=10, disk=10), 12)
    rates.count(found(host=5), 0)
    assert rates.chosen == {Tier.HOST: 10, Tier.DISK: 2}
    assert rates.refused == {Tier.HOST: 5, Tier.DISK: 8}
