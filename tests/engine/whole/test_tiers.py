"""Prefixes load from lower tiers during steps, delay no other request, and are computed on a
failure.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.copies import COPY_WAIT_S
from engine.core import IDLE_WAIT_S
from engine.errors import EngineUnavailable
from engine.link.messages import Cancel
from engine.link.query_messages import Flush
from engine.link.stats.tier_stats import TierTokens
from prefix_cache.tiers.tier_pools import Tiers
from storage.move import Move, Tier
from tests.doubles.engine.fake_mover import Faults
from tests.doubles.engine.fake_runner import expected_output
from tests.engine.rigs.rig import Rig, generate

PROMPT = list(range(40))
HOST = Tiers(host_blocks=64)
DISK = Tiers(disk_blocks=64)
BOTH = Tiers(host_blocks=16, disk_blocks=64)


def lowered(tiers: Tiers = HOST, **settings: Any) -> Rig:
    """Make a rig that served PROMPT twice; another long prompt then pushed it from the device."""
    rig = Rig(num_blocks=16, max_batch_tokens=64, tiers=tiers, **settings)
    for name in ("first", "second"):
        rig.submit(generate(name, PROMPT, max_tokens=1))
        rig.run()
    rig.push_out()
    return rig


def step_until_loading(rig: Rig, names: str = "a") -> None:
    """Step until these sequences load; before that, other blocks are offloaded to make room."""
    for _ in range(20):
        rig.step()
        if [sequence.request_id for sequence in rig.scheduler.loading] == [*names]:
            return
    raise AssertionError("nothing loads")


def scheduled_at_launches(rig: Rig) -> list[int]:
    """Return a list that gets, at each launch, the number of moves begun since this call."""
    counts, plans = list[int](), len(rig.mover.plans)
    rig.runner.takes = lambda _: counts.append(
        sum(len(plan.moves) for plan in rig.mover.plans[plans:])
    )
    return counts


def loads(rig: Rig) -> int:
    return sum(len(rig.mover.moves(tier, Tier.DEVICE)) for tier in (Tier.HOST, Tier.DISK))


@pytest.mark.parametrize("overlap_scheduling", [False, True])
@pytest.mark.parametrize("tiers", [HOST, DISK, BOTH])
class TestThereAndBack:
    def test_blocks_that_went_down_are_loaded_with_the_right_content(
        self, tiers: Tiers, overlap_scheduling: bool
    ) -> None:
        rig = lowered(tiers, overlap_scheduling=overlap_scheduling)
        again = generate("again", PROMPT, max_tokens=6)
        computed = rig.runner.tokens_computed
        rig.submit(again)
        rig.run()
        rig.expect_output(again)
        assert rig.finished("again").reused.tokens == 36
        assert rig.runner.tokens_computed - computed == 4 + 5
        assert loads(rig) == 9
        rig.expect_nothing_left()

    def test_without_tiers_it_is_computed(self, tiers: Tiers, overlap_scheduling: bool) -> None:
        """Compute the prefix without tiers (positive control): only the tiers keep it."""
        del tiers
        rig = lowered(Tiers(), overlap_scheduling=overlap_scheduling)
        rig.submit(generate("again", PROMPT, max_tokens=6))
        rig.run()
        assert rig.finished("again").reused.tokens == 0


class TestOrderOfAStep:
    """Tests that a step's copies begin before the step is launched."""

    AHEAD = Tiers(host_blocks=64, ahead=8)

    @pytest.mark.parametrize(("overlap_scheduling", "are_begun"), [(True, False), (False, True)])
    def test_a_device_with_nothing_to_do_gets_its_step_before_copies_down_begin(
        self, overlap_scheduling: bool, are_begun: bool
    ) -> None:
        """Launch an idle device's step before copies down begin.

        Without overlapped steps, the step would end before the copies begin.
        """
        rig = lowered(self.AHEAD, overlap_scheduling=overlap_scheduling)
        before = scheduled_at_launches(rig)
        rig.submit(generate("a", range(50, 62), max_tokens=1))
        rig.step()
        down = sum(len(plan.moves) for plan in rig.mover.plans[-1:])
        assert down == 3
        assert before == [down if are_begun else 0]

    def test_beside_a_step_on_its_way_they_begin_first(self) -> None:
        rig = lowered(self.AHEAD, overlap_scheduling=True)
        rig.submit(generate("running", range(50, 54), max_tokens=8))
        rig.step(2)
        before, plans = scheduled_at_launches(rig), len(rig.mover.plans)
        rig.submit(generate("a", range(40, 52), max_tokens=1))
        while len(rig.mover.plans) == plans:
            rig.step()
        down = len(rig.mover.plans[-1].moves)
        assert down
        assert before[-1] == down

    def test_loads_begin_first_in_any_case(self) -> None:
        rig = lowered(self.AHEAD, overlap_scheduling=True)
        before = scheduled_at_launches(rig)
        rig.submit(generate("loading", [*PROMPT[:16], 1], max_tokens=1))
        rig.submit(generate("a", range(50, 54), max_tokens=1, flow="other"))
        rig.step()
        assert loads(rig) == 4
        assert len(before) == 1
        assert before[0] >= 4


class TestWaiting:
    def test_a_load_holds_up_nobody_else(self) -> None:
        rig = lowered()
        rig.mover.held.add(Tier.DEVICE)
        rig.submit(generate("loading", PROMPT, max_tokens=2))
        other = generate("other", range(50, 60), max_tokens=5)
        rig.step(6)
        rig.submit(other)
        rig.step(12)
        rig.expect_output(other)
        [sequence] = rig.scheduler.loading
        assert sequence.request_id == "loading"
        assert sequence.batch_slot is None
        assert rig.core.stats().loading == 1
        rig.mover.held.clear()
        rig.run()
        rig.expect_output(generate("loading", PROMPT, max_tokens=2))

    def test_with_nothing_but_loads_it_waits_a_moment_and_does_not_spin(self) -> None:
        rig = lowered()
        rig.mover.held.add(Tier.DEVICE)
        rig.submit(generate("a", PROMPT, max_tokens=2))
        step_until_loading(rig)
        rig.step()
        assert rig.link.waits[-1] == COPY_WAIT_S
        rig.mover.held.clear()
        rig.run()
        rig.settle_copies()
        rig.step()
        assert rig.link.waits[-1] == IDLE_WAIT_S

    def test_two_for_one_prefix_load_it_once(self) -> None:
        rig = lowered()
        requests = [generate(name, [*PROMPT[:36], ord(name) % 64], max_tokens=3) for name in "ab"]
        for request in requests:
            rig.submit(request)
        rig.run()
        for request in requests:
            rig.expect_output(request)
        assert loads(rig) == 9
        assert [rig.finished(name).reused.tokens for name in "ab"] == [36, 36]
        assert rig.finished("a").reused.tiers == TierTokens(host=36)
        # the blocks were loaded for the other request
        assert rig.finished("b").reused.tiers == TierTokens(device=36)
        rig.expect_nothing_left()

    def test_a_lease_that_waits_for_others_loads_copies_nothing_of_its_own(self) -> None:
        """Copy nothing for a lease that waits for another lease's load.

        When that wait is over, the source of a partial block may no longer exist.
        """
        rig = lowered()
        rig.mover.held.add(Tier.DEVICE)
        rig.submit(generate("a", PROMPT, max_tokens=2))
        rig.submit(generate("b", [*PROMPT[:38], 60, 61, 62], max_tokens=2))
        rig.step(12)
        leases = [one.lease for one in rig.scheduler.loading]
        assert [lease and lease.moves for lease in leases] == [(), ()]
        rig.mover.held.clear()
        rig.run()
        rig.expect_output(generate("b", [*PROMPT[:38], 60, 61, 62], max_tokens=2))


class TestPromises:
    @pytest.mark.parametrize("overlap_scheduling", [False, True])
    def test_a_step_begins_before_its_load_has_ended(self, overlap_scheduling: bool) -> None:
        rig = lowered(faults=Faults(promising=1.0), overlap_scheduling=overlap_scheduling)
        rig.mover.held.add(Tier.DEVICE)
        again = generate("again", PROMPT, max_tokens=6)
        rig.submit(again)
        rig.run()
        rig.expect_output(again)
        assert rig.finished("again").reused.tiers == TierTokens(host=36)
        assert rig.mover.ended["promised", Tier.HOST, Tier.DEVICE] == 9
        rig.mover.held.clear()
        rig.expect_nothing_left()

    def test_what_it_computes_is_shared_at_once(self) -> None:
        """Settle a load before the step, so that the tree can append the step's block to loaded
        blocks.
        """
        rig = lowered(faults=Faults(promising=1.0))
        rig.mover.held.add(Tier.DEVICE)
        longer = [*PROMPT[:36], *range(50, 60)]
        rig.submit(generate("longer", longer, max_tokens=3))
        while rig.runner.owners[-1][-1].request_id != "longer":
            rig.step()
        assert rig.mover.ended["promised", Tier.HOST, Tier.DEVICE] == 9
        path = rig.runner.owners[-1][-1].path
        assert rig.cache.tree.match(path, np.array(longer, np.int32)).found.total == 44 // 4
        rig.mover.held.clear()
        rig.run()


class TestEnds:
    @pytest.mark.parametrize("fate", ["failed", "lost"])
    @pytest.mark.parametrize("tiers", [HOST, DISK])
    def test_a_load_that_fails_is_computed_instead(self, fate: str, tiers: Tiers) -> None:
        rig = lowered(tiers)

        def ends(move: Move) -> str:
            fails = move.target_tier is Tier.DEVICE and len(rig.mover.under_way) == 4
            return fate if fails else "done"

        rig.mover.choose_fate = ends
        again = generate("again", PROMPT, max_tokens=3)
        rig.submit(again)
        rig.run()
        rig.expect_output(again)
        assert rig.core.stats().failed_loads == 1
        rig.expect_nothing_left()

    def test_a_sequence_whose_load_failed_goes_first_in_its_flow(self) -> None:
        rig = lowered(max_running=1)
        rig.mover.choose_fate = lambda move: (
            "done" if move.target_tier is not Tier.DEVICE else "failed"
        )
        rig.submit(generate("a", PROMPT, max_tokens=2))
        rig.submit(generate("b", range(5), max_tokens=2))
        rig.run()
        order = [one.request_id for owners in rig.runner.owners for one in owners]
        assert order.index("a") < order.index("b")
        rig.expect_output(generate("a", PROMPT, max_tokens=2))

    def test_a_cancelled_load_leaves_nothing_behind(self) -> None:
        rig = lowered()
        rig.mover.held.add(Tier.DEVICE)
        rig.submit(generate("a", PROMPT, max_tokens=2))
        step_until_loading(rig)
        rig.link.say(Cancel("a"))
        rig.step()
        assert rig.finished("a").reason == "cancelled"
        assert rig.core.is_idle
        rig.mover.held.clear()
        rig.settle_copies()
        again = generate("again", PROMPT, max_tokens=2)
        rig.submit(again)
        rig.run()
        rig.expect_output(again)
        rig.expect_nothing_left()

    def test_a_flush_while_it_loads_harms_nobody(self) -> None:
        rig = lowered(BOTH)
        rig.mover.held.add(Tier.DEVICE)
        rig.submit(generate("a", PROMPT, max_tokens=4))
        step_until_loading(rig)
        rig.link.say(Flush(query_id="1"))
        rig.step(2)
        rig.mover.held.clear()
        rig.run()
        assert rig.link.tokens("a") == expected_output(PROMPT, 4)
        rig.expect_nothing_left()

    def test_a_drain_waits_for_a_load_and_an_end_drops_it(self) -> None:
        rig = lowered()
        rig.mover.held.add(Tier.DEVICE)
        rig.submit(generate("a", PROMPT, max_tokens=2))
        rig.submit(generate("b", PROMPT[:30], max_tokens=2))
        step_until_loading(rig, "ab")
        rig.core.drain()
        rig.submit(generate("late", PROMPT))
        rig.step(2)
        assert rig.failed("late").code == "engine_unavailable"
        assert not rig.core.is_idle
        rig.core.fail_all(EngineUnavailable("stopped"))
        assert rig.failed("a").code == rig.failed("b").code == "engine_unavailable"
        rig.cache.check_invariants()

    def test_numbers_that_are_not_finite_reach_no_tier(self) -> None:
        rig = Rig(num_blocks=16, max_batch_tokens=64, tiers=BOTH)
        bad = generate("bad", PROMPT, max_tokens=4)
        rig.runner.not_finite.add("bad")
        rig.submit(bad)
        rig.run()
        assert rig.failed("bad").code == "numeric_failure"
        rig.push_out()
        rig.runner.not_finite.clear()
        for name in ("one", "two", "three"):
            request = generate(name, PROMPT, max_tokens=4)
            rig.submit(request)
            rig.run()
            rig.expect_output(request)
        assert rig.finished("one").reused.tokens == 0
        assert rig.finished("two").reused.tokens == 39

    def test_a_loading_one_gives_way_to_an_elder_that_needs_room(self) -> None:
        rig = lowered()
        rig.clock.now += 1
        elder = generate("elder", range(40, 60), max_tokens=30)
        rig.submit(elder)
        rig.step(2)
        rig.mover.held.add(Tier.DEVICE)
        rig.submit(generate("younger", PROMPT, max_tokens=2))
        rig.step(30)
        assert rig.core.stats().preemptions > 0
        rig.mover.held.clear()
        rig.run()
        rig.expect_output(elder)
        rig.expect_output(generate("younger", PROMPT, max_tokens=2))
        rig.expect_nothing_left()


def test_a_copy_that_was_timed_counts_by_its_own_time() -> None:
    rig = lowered()
    rig.mover.block_seconds = 2e-6  # a step takes a millisecond
    rig.submit(generate("again", PROMPT))
    rig.run()
    way = rig.core.components.copies.ways[Tier.HOST, Tier.DEVICE]
    assert way.moves == 9
    assert way.seconds == pytest.approx(way.moves * 2e-6)
    assert rig.core.components.rates.copies[Tier.HOST].per_block == pytest.approx(2e-6)


@pytest.mark.parametrize("steps", [1, 30])
def test_a_copy_that_nobody_timed_counts_by_the_time_it_was_under_way(steps: int) -> None:
    rig = lowered()
    copies = rig.core.components.copies
    rig.mover.held.add(Tier.DEVICE)
    rig.submit(generate("again", PROMPT))
    while not copies.up_from(Tier.HOST):
        rig.step()
    began = rig.clock.now
    rig.step(steps)
    rig.mover.held.clear()
    while copies.up_from(Tier.HOST):
        rig.step()
    way = copies.ways[Tier.HOST, Tier.DEVICE]
    assert way.moves == 9
    assert way.seconds == pytest.approx(rig.clock.now - began)
    assert way.seconds > steps * 0.001


def test_blocks_that_are_damaged_in_host_memory_are_counted_and_computed_again() -> None:
    rig = lowered()
    assert rig.core.stats().sentinel.damaged_blocks == 0
    rig.mover.choose_fate = lambda move: "lost" if move.source_tier is Tier.HOST else "done"
    again = generate("again", PROMPT, max_tokens=6)
    rig.submit(again)
    rig.run()
    rig.expect_output(again)
    assert rig.core.stats().sentinel.damaged_blocks > 0
    rig.expect_nothing_left()
