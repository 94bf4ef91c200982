"""Step times are learned from measurements, and predicted for steps of other shapes."""

from __future__ import annotations

import random

import pytest

from engine.scheduling.scheduled_rows import row_of
from engine.scheduling.step_times import (
    FORGETS,
    HIDDEN,
    LARGE,
    MEASURED_TOKENS,
    MISSED,
    MOST_LATE,
    NUM_REMEMBERED,
    SHORTEST_CONTEXT,
    StepShape,
    StepTimes,
)
from engine.step_sizes import MOST_NEW
from tests.doubles.modelled.mixture import MixtureModel
from tests.doubles.modelled.products import ProductModel
from tests.doubles.modelled.shapes import seconds_of
from tests.engine.rigs.sequences import waiting

STEP = StepShape(decodes=8, keys=8_000, new=512, pairs=512 * 500.0)


def taught(shape: StepShape = STEP, *seconds: float) -> StepTimes:
    times = StepTimes()
    for one in seconds or (0.02,) * NUM_REMEMBERED:
        times.settled(shape, one)
    return times


def test_a_shape_counts_decodes_and_prompts_apart() -> None:
    chunk = row_of(waiting("chunk", prompt_len=100), 10, 20)
    decode = row_of(waiting("decode"), 1, 6)
    assert StepShape.of([decode, decode, chunk]) == StepShape(2, 14, 10, 10 * 25.0)
    assert StepShape.prompt(20, 30) == StepShape(0, 0, 10, 10 * 25.0)


class TestLearning:
    def test_nothing_is_known_and_nothing_costs(self) -> None:
        times = StepTimes()
        assert times.seconds(STEP) == times.prefill(0, 10_000) == 0.0
        assert not times.is_measured
        assert times.least(STEP) is None
        assert times.tokens_per_second() == {}

    def test_one_step_is_predicted_at_once(self) -> None:
        assert taught(STEP, 0.02).seconds(STEP) == pytest.approx(0.02)

    def test_what_changed_is_learned_anew(self) -> None:
        times = taught()
        for _ in range(20):
            times.settled(STEP, 0.05)
        assert times.seconds(STEP) == pytest.approx(0.05, rel=0.01)

    def test_a_step_that_took_no_time_teaches_nothing(self) -> None:
        times = taught(STEP, 0.02)
        times.settled(STEP, 0.0)
        assert times.seconds(STEP) == pytest.approx(0.02)

    @pytest.mark.parametrize("new", [MEASURED_TOKENS - 1, MEASURED_TOKENS])
    def test_few_tokens_say_little_of_a_prompt(self, new: int) -> None:
        assert taught(StepShape(new=new), 0.01).is_measured is (new == MEASURED_TOKENS)

    @pytest.mark.parametrize("read_once", [0.0, 0.72])
    def test_steps_of_a_gpu_are_predicted_within_some_percent(self, read_once: float) -> None:
        """Predict a GPU's steps within some percent, although their times are irregular.

        Some sizes cost hardly more than smaller ones, and only some steps share keys.
        """
        drawn, model = random.Random(1), ProductModel(read_once=read_once)
        times = StepTimes()
        errors = []
        for _ in range(900):
            decodes, context = drawn.choice([4, 30, 48, 60]), drawn.randint(1_000, 8_000)
            new, before = drawn.choice([0, 0, 128, 256, 960, 2_048, 8_192]), drawn.randint(0, 6_000)
            shape = StepShape(decodes, decodes * context, new, new * float(before))
            took = seconds_of(model, shape) * (1 + 0.02 * drawn.random())
            errors.append(abs(times.seconds(shape) - took) / took)
            times.settled(shape, took)
        errors = sorted(errors[-300:])
        assert errors[150] < 0.03
        assert errors[270] < 0.08

    def test_decodes_that_get_fewer_leave_no_number_of_them_too_dear(self) -> None:
        """Learn from ever fewer decodes without predicting too long times for any number of rows.

        In a mixture of experts a few rows cost almost as much as many, but one row costs little.
        """
        times, model = StepTimes(), MixtureModel()
        alone = [StepShape(1, 1_000)] * 20
        fewer = [StepShape(rows, rows * (1_112 - 2 * rows)) for rows in range(256, 0, -1)]
        for shape in (*alone, *(one for one in fewer for _ in range(3))):
            times.settled(shape, seconds_of(model, shape))
        for rows in (16, 32, 64, 96, 128, 192, 256):
            shape = StepShape(rows, rows * 1_100)
            assert 0.5 < times.seconds(shape) / seconds_of(model, shape) < 2.0

    def test_a_size_that_was_not_met_is_like_the_nearest(self) -> None:
        times = StepTimes()
        for _ in range(50):
            times.settled(StepShape(new=512), 0.010)
            times.settled(StepShape(new=8_192), 0.150)
        nearer = times.seconds(StepShape(new=640))
        assert 0.010 < nearer < 0.015

    def test_the_first_step_of_a_size_says_what_it_takes(self) -> None:
        """Trust the first measurement of a size: a size whose prediction is too long would never be
        tried again.
        """
        times = taught(StepShape(new=512))
        known, new = times.seconds(StepShape(new=512)), times.seconds(StepShape(new=1024))
        times.settled(StepShape(new=1024), 0.7 * new)
        assert times.seconds(StepShape(new=1024)) == pytest.approx(0.7 * new)
        times.settled(StepShape(new=512), 0.7 * known)  # one outlier after many steps
        assert times.seconds(StepShape(new=512)) > 0.8 * known


class TestLeast:
    def test_the_shortest_of_the_last_counts(self) -> None:
        times = taught(STEP, *[0.02] * NUM_REMEMBERED)
        assert times.least(STEP) == pytest.approx(0.02)
        times.settled(STEP, 0.01)
        assert (times.least(STEP) or 1.0) < 0.011
        for _ in range(2 * NUM_REMEMBERED):
            times.settled(STEP, 0.02)
        assert times.least(STEP) == pytest.approx(0.02, rel=0.1)

    def test_little_is_known_at_first(self) -> None:
        assert taught(STEP, *[0.02] * (NUM_REMEMBERED - 1)).least(STEP) is None

    def test_a_prediction_that_was_too_long_is_shortened(self) -> None:
        times = taught()
        times.missed(STEP, 0.02)
        assert times.least(STEP) == pytest.approx(MISSED * 0.02)

    def test_a_host_that_came_late_makes_no_prediction_longer(self) -> None:
        times = taught()
        times.missed(STEP, 0.06)
        assert times.least(STEP) == pytest.approx(0.02)

    def test_a_size_that_was_thought_dear_costs_no_more_than_it_can_have_taken(self) -> None:
        """Bound the predicted time of a size by what a step can have taken.

        A size with too long a prediction would not be tried, so its time would never be learned.
        """
        times = taught()
        for _ in range(12):
            times.missed(STEP, 0.005)
        assert times.seconds(STEP) == pytest.approx(0.005, rel=0.1)
        times.missed(STEP, 0.06)
        assert times.seconds(STEP) < 0.006


class TestLaunches:
    TOO_LARGE = StepShape(new=2 * MOST_NEW)

    def known(self, took: float = 0.01) -> StepTimes:
        """Make the times of a model whose step takes the device 10 ms, and the host's launch
        25 ms.
        """
        times = taught(self.TOO_LARGE, 0.01)
        times.launched(self.TOO_LARGE, 0.025)
        times.settled(self.TOO_LARGE, took)
        return times

    def test_a_step_takes_at_least_its_launch(self) -> None:
        assert self.known().seconds(self.TOO_LARGE) == 0.025
        assert self.known().seconds(StepShape(new=MOST_NEW)) < 0.01

    def test_what_is_captured_is_launched_at_once(self) -> None:
        times = taught(StepShape(new=MOST_NEW), 0.01)
        times.launched(StepShape(new=MOST_NEW), 0.025)
        assert times.seconds(StepShape(new=MOST_NEW)) == pytest.approx(0.01)

    def test_without_graphs_the_host_is_part_of_what_is_measured(self) -> None:
        times = StepTimes(0)
        times.settled(STEP, 0.01)
        times.launched(STEP, 0.025)
        assert times.seconds(STEP) == pytest.approx(0.01)

    def test_the_shortest_of_the_last_counts(self) -> None:
        times = self.known()
        times.launched(self.TOO_LARGE, 0.4)
        assert times.seconds(self.TOO_LARGE) == 0.025

    def test_a_launch_that_stalled_is_forgotten_though_none_is_tried_meanwhile(self) -> None:
        times = taught(self.TOO_LARGE, 0.01)
        times.launched(self.TOO_LARGE, 5.0)
        for _ in range(FORGETS - 1):
            times.launched(StepShape(decodes=8), 0.001)
        assert times.seconds(self.TOO_LARGE) == 5.0
        times.launched(StepShape(decodes=8), 0.001)
        assert times.seconds(self.TOO_LARGE) == pytest.approx(0.01)

    @pytest.mark.parametrize("took", [0.025, 0.06])
    def test_what_the_host_took_is_not_taken_to_be_the_devices(self, took: float) -> None:
        beside_many_keys = self.TOO_LARGE._replace(keys=10**7)  # a step of 30 ms or more
        before = self.known().seconds(beside_many_keys)
        assert before > 0.025
        is_hidden = took < HIDDEN * 0.025
        assert (self.known(took).seconds(beside_many_keys) == before) is is_hidden


class TestPrompts:
    def test_a_longer_context_takes_longer(self) -> None:
        times = taught(StepShape.prompt(0, 8_192), 0.15)
        assert times.prefill(30_000, 31_000) > times.prefill(0, 1_000) > 0.0

    def test_a_long_prompt_takes_as_long_as_its_steps(self) -> None:
        times = taught(StepShape.prompt(0, LARGE), 0.15)
        both = times.prefill(0, LARGE) + times.prefill(LARGE, 2 * LARGE)
        assert times.prefill(0, 2 * LARGE) == pytest.approx(both)

    def test_rates_are_told_for_every_doubling_up_to_the_longest(self) -> None:
        times = taught(StepShape(new=512, pairs=512 * 5.0 * SHORTEST_CONTEXT), 0.02)
        rates = times.tokens_per_second()
        assert list(rates) == [SHORTEST_CONTEXT << doubling for doubling in range(4)]
        assert sorted(rates.values(), reverse=True) == list(rates.values())


class TestSizes:
    def test_they_end_with_the_most(self) -> None:
        for times in (StepTimes(), StepTimes(0)):
            assert times.sizes(8, 700)[-1] == 700
            assert times.sizes(8, 5) == [5]
            assert times.sizes(8, 8_192) == sorted(set(times.sizes(8, 8_192)))

    def test_recorded_ones_are_filled(self) -> None:
        assert 960 in StepTimes().sizes(60, 8_192)  # one of the sizes is a step of 1,024 rows
        assert not {size for size in StepTimes(256).sizes(60, 8_192) if 256 < size <= MOST_NEW}


class TestLateRatio:
    """Tests of the ratio of gaps to predictions that only few gaps exceed."""

    def test_it_is_exceeded_by_one_gap_in_a_hundred_at_most(self) -> None:
        times, dice = taught(), random.Random(3)
        predicted = times.seconds(STEP)
        late = 0
        for number in range(6_000):
            gap = predicted * (1 + 0.3 * dice.random())
            late += number >= 2_000 and gap > predicted * times.late_ratio
            times.gap(STEP, gap)
        assert 0 < late < 40
        assert 1.2 < times.late_ratio < 1.35

    def test_steps_without_prompts_or_decodes_teach_nothing(self) -> None:
        times = taught()
        for shape in (STEP._replace(new=0, pairs=0.0), STEP._replace(decodes=0, keys=0)):
            times.gap(shape, 1.0)
        assert times.late_ratio == 1.0
        StepTimes().gap(STEP, 1.0)
        times.gap(STEP, 1.0)
        assert times.late_ratio > 1.0

    def test_it_has_bounds(self) -> None:
        times = taught()
        for _ in range(200):
            times.gap(STEP, 1.0)
        assert times.late_ratio == MOST_LATE
        for _ in range(10_000):
            times.gap(STEP, 0.001)
        assert times.late_ratio == 1.0
