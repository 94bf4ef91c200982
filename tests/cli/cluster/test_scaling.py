"""The number of engines that scaling asks for, and the wait predicted for each engine."""

from __future__ import annotations

from typing import cast

import pytest
from msgspec.structs import replace

from cli.cluster.scaling import (
    DOWN_AFTER_S,
    UP_AFTER_S,
    Change,
    Fleet,
    ScalingBounds,
    Since,
    decide,
)
from cli.cluster.wait import RATE_S, PredictedWait, predicted
from engine.link.query import Query, R
from engine.link.query_messages import StatsQuery, StatsReply
from engine.link.stats.engine_stats import WindowStats
from engine.link.stats.tier_stats import TierStats
from engine.link.view_messages import Sequences, SequenceState, SequenceView
from tests.gateway.support.manual_clock import ManualClock
from tests.gateway.support.operated_engine import some_stats

BOUNDS = ScalingBounds(least=1, most=3, target_wait_s=2.0)


class Clocked:
    """A record of scaling decisions in time order."""

    def __init__(self, bounds: ScalingBounds = BOUNDS) -> None:
        self.bounds = bounds
        self.since = Since()
        self.now = 1000.0

    def after(self, seconds: float, *waits: float, changing: int = 0, used: float = 0.0) -> Change:
        self.now += seconds
        fleet = Fleet(waits, changing, used)
        change, self.since = decide(fleet, self.since, self.bounds, self.now)
        return change


def test_one_is_added_when_even_the_soonest_is_too_slow_for_a_while() -> None:
    clocked = Clocked()
    assert clocked.after(0, 9.0, 9.0) == 0
    assert clocked.after(UP_AFTER_S / 2, 9.0, 1.0) == 0, "one is soon enough: it begins anew"
    assert clocked.after(UP_AFTER_S, 9.0, 9.0) == 0
    assert clocked.after(UP_AFTER_S, 9.0, 9.0) == 1
    assert clocked.after(UP_AFTER_S, 9.0, 9.0, changing=1) == 0, "the one that comes may do"
    assert clocked.after(UP_AFTER_S, 9.0, 9.0, 9.0) == 0, "there are no more"


def test_one_goes_when_the_others_would_do_with_room_to_spare() -> None:
    clocked = Clocked()
    assert clocked.after(0, 0.1, 0.1) == 0
    assert clocked.after(DOWN_AFTER_S / 2, 0.3, 0.3) == 0, "what both have is too much for one"
    assert clocked.after(DOWN_AFTER_S, 0.1, 0.1) == 0
    assert clocked.after(DOWN_AFTER_S, 0.1, 0.1) == -1
    assert clocked.after(DOWN_AFTER_S, 0.0) == 0
    assert clocked.after(DOWN_AFTER_S, 0.0) == 0, "the floor"


def test_none_goes_whose_work_the_others_could_hardly_do_although_nobody_waits() -> None:
    clocked = Clocked()
    for used in (1.6, 1.51):
        assert clocked.after(DOWN_AFTER_S, 0.0, 0.0, 0.0, used=used) == 0
    assert clocked.after(0, 0.0, 0.0, 0.0, used=1.5) == 0, "from now on"
    assert clocked.after(DOWN_AFTER_S, 0.0, 0.0, 0.0, used=1.5) == -1


def test_below_the_floor_there_is_no_wait_for_anything() -> None:
    clocked = Clocked(ScalingBounds(least=2, most=3, target_wait_s=2.0))
    assert clocked.after(0) == 1
    assert clocked.after(0, changing=1) == 1
    assert clocked.after(0, changing=2) == 0
    assert clocked.after(0, 0.0, changing=1) == 0


@pytest.mark.parametrize("load", [1.0, 3.5, 5.9, 100.0])
def test_a_load_that_stays_comes_to_rest(load: float) -> None:
    clocked, engines, changes = Clocked(), 1, 0
    for _ in range(1000):
        change = clocked.after(1.0, *[load / engines] * engines)
        engines, changes = engines + change, changes + abs(change)
    assert 1 <= engines <= 3
    assert changes == engines - 1, "it never went back"


class Asked:
    """An engine whose reports a test sets."""

    def __init__(self) -> None:
        self.computed, self.alive, self.asked = 0, 0, 0

    async def ask(self, query: Query[R], within_s: float | None = None) -> R:
        return cast("R", self._stats() if isinstance(query, StatsQuery) else self._sequences())

    def _stats(self) -> StatsReply:
        self.asked += 1
        windows = {"1m": WindowStats(queried_tokens=0, hit_tokens=0, computed_tokens=self.computed)}
        tiers = TierStats(prefill={1024: 100.0, 8192: 50.0})
        return StatsReply(query_id="", stats=replace(some_stats(tiers=tiers), windows=windows))

    def _sequences(self) -> Sequences:
        return Sequences(query_id="", total=self.alive, sequences=[])


async def test_what_an_engine_is_used_is_its_time_for_prompts_or_its_places() -> None:
    engine, clock = Asked(), ManualClock()
    predicted = PredictedWait(16, clock)
    engine.computed = 3000
    assert await predicted.look(engine) == (0.0, 0.5), "of 6000 in a minute"
    engine.computed, engine.alive = 0, 12
    assert await predicted.look(engine) == (0.0, 0.75)
    engine.alive = 4
    assert (await predicted.look(engine)).used == 0.5, "counts are asked for now and then"
    clock.advance(RATE_S)
    assert (await predicted.look(engine)).used == 0.25
    assert engine.asked == 2


def sequence(state: SequenceState, age_s: float, prompt: int, cached: int = 0) -> SequenceView:
    return SequenceView("r", "f", state, age_s, prompt, cached, 0)


def test_a_wait_is_what_is_to_be_computed_and_at_least_what_was_waited() -> None:
    listed = [sequence("decode", 90.0, 9000), sequence("prefill", 3.0, 1000, cached=500)]
    found = Sequences(query_id="", total=2, sequences=listed)
    assert predicted(found, 250.0) == 2.0
    waits = [*listed, sequence("waiting", 5.0, 100)]
    assert predicted(Sequences(query_id="", total=3, sequences=waits), 250.0) == 5.0
    assert predicted(Sequences(query_id="", total=300, sequences=waits), 250.0) == 240.0
    assert predicted(Sequences(query_id="", total=0, sequences=[]), 250.0) == 0.0
