"""The number of prompt tokens in a step: its choice by a table of step times, and its effects."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.link.messages import Cancel, Generate
from engine.scheduling.prefill_budget import (
    FEWEST_TIMES,
    LEAST,
    LEAST_SHARE,
    PrefillBudget,
    WaitingPrompts,
)
from engine.scheduling.scheduled_rows import row_of
from engine.scheduling.step_builder import StepLimits
from engine.scheduling.step_times import StepShape, StepTimes
from engine.step_sizes import MOST_NEW
from tests.doubles.modelled.mixture import MixtureModel
from tests.doubles.modelled.products import ProductModel
from tests.doubles.modelled.shapes import seconds_of
from tests.engine.rigs.rig import OTHER, Rig, generate
from tests.engine.rigs.sequences import waiting
from tests.examples import in_the_zoo

WHOLE = 8192
MAX_STEP_S = 0.06
MODEL = ProductModel()
FEW = StepShape(8, 8 * 1_000)
MANY = StepShape(64, 64 * 1_000)
NONE = WaitingPrompts(0, 0, 0)


class KnownTimes(StepTimes):
    """Step times that are known from the start."""

    def __init__(self) -> None:
        super().__init__()
        self.is_measured = True

    def seconds(self, shape: StepShape) -> float:
        return seconds_of(MODEL, shape)


def budget(max_step_s: float | None = MAX_STEP_S, usual: int = 500) -> PrefillBudget:
    made = PrefillBudget(StepLimits(WHOLE, 256, max_step_s), KnownTimes())
    made.admitted(usual, 0)
    return made


def seconds(decodes: StepShape, new: int, usual: int = 500) -> float:
    return seconds_of(MODEL, StepShape(decodes.decodes, decodes.keys, new, new * usual / 2))


def of_others(
    made: PrefillBudget,
    decodes: StepShape,
    waiting: WaitingPrompts,
    *,
    newcomers: int = 0,
    returning: int | None = None,
    most: int = WHOLE,
) -> int:
    return made.of_others(decodes, newcomers, waiting, returning, most)


class TestBesideDecodes:
    @pytest.mark.parametrize("queued", [1, 4, 40])
    @pytest.mark.parametrize("decodes", [FEW, MANY])
    def test_a_step_takes_no_longer_than_it_may(self, decodes: StepShape, queued: int) -> None:
        new = of_others(budget(), decodes, WaitingPrompts(0, 0, queued))
        assert new > 0
        assert seconds(decodes, new) <= MAX_STEP_S

    def test_many_that_wait_have_longer_steps(self) -> None:
        new = of_others(budget(), FEW, WaitingPrompts(0, 0, 400))
        assert seconds(FEW, new) > MAX_STEP_S

    def test_without_decodes_nobody_waits_for_a_token(self) -> None:
        assert of_others(budget(), StepShape(), WaitingPrompts(0, 0, 40)) == WHOLE

    @pytest.mark.parametrize("decodes", [FEW, MANY])
    def test_of_two_sizes_the_cheaper_is_taken(self, decodes: StepShape) -> None:
        """Choose the size with the lower cost per token: that of a captured step if many decode and
        few tokens wait.
        """
        new = of_others(budget(), decodes, WaitingPrompts(1, 3_000, 0))
        alone = seconds(decodes, 0)
        price = (seconds(decodes, new) - alone) / new
        assert price <= (seconds(decodes, 2_048) - alone) / 2_048

    def test_prompts_of_which_nothing_is_known_may_be_long(self) -> None:
        made = PrefillBudget(StepLimits(WHOLE, 256, MAX_STEP_S), KnownTimes())
        assert of_others(made, MANY, WaitingPrompts(0, 0, 1)) > 0

    def test_no_bound_stops_prompts(self) -> None:
        new = of_others(budget(max_step_s=1e-6), MANY, WaitingPrompts(0, 0, 4))
        assert new > 0
        assert seconds(MANY, new) <= FEWEST_TIMES * seconds(MANY, 0)

    def test_without_a_bound_or_a_measurement_all_is_computed(self) -> None:
        unknown = PrefillBudget(StepLimits(WHOLE, 256, MAX_STEP_S), StepTimes())
        for made in (budget(None), unknown):
            assert (
                of_others(made, MANY, WaitingPrompts(0, 0, 40), newcomers=9, returning=9) == WHOLE
            )
            assert made.of_newcomers(MANY, WHOLE) == WHOLE

    def test_a_step_without_room_has_none(self) -> None:
        assert of_others(budget(), MANY, WaitingPrompts(0, 0, 4), most=0) == 0


class TestTargets:
    """Tests that the decodes' target time replaces the usual bound of a step."""

    @pytest.mark.parametrize("queued", [1, 40, 400])
    @pytest.mark.parametrize("target_s", [0.02, 0.04, 0.1])
    def test_a_step_keeps_to_the_target_however_many_wait(
        self, target_s: float, queued: int
    ) -> None:
        made, waiting = budget(), WaitingPrompts(0, 0, queued)
        new = made.of_others(MANY, 0, waiting, None, WHOLE, target_s)
        assert new > 0
        assert seconds(MANY, new) <= target_s
        assert 0 < seconds(MANY, made.of_newcomers(MANY, WHOLE, target_s)) <= target_s

    def test_what_steps_exceed_their_predictions_by_is_kept_free(self) -> None:
        made = budget()
        made._times.late_ratio = 1.5
        assert seconds(MANY, made.of_newcomers(MANY, WHOLE, 0.04)) <= 0.04 / 1.5

    def test_a_target_that_leaves_too_little_leaves_a_share(self) -> None:
        made = budget()
        for target_s in (1e-6, seconds(MANY, 0)):
            new = made.of_others(MANY, 0, WaitingPrompts(0, 0, 40), None, WHOLE, target_s)
            assert 0 < new < 1_024
            assert seconds(MANY, new) <= seconds(MANY, 0) / (1 - LEAST_SHARE)

    def test_a_target_needs_no_usual_bound(self) -> None:
        made = budget(max_step_s=None)
        assert of_others(made, MANY, WaitingPrompts(0, 0, 40)) == WHOLE
        assert made.of_others(MANY, 0, WaitingPrompts(0, 0, 40), None, WHOLE, 0.02) < WHOLE

    def test_without_decodes_no_target_is_asked(self) -> None:
        new = budget().of_others(StepShape(), 0, WaitingPrompts(0, 0, 40), None, WHOLE, 0.02)
        assert new == WHOLE

    def test_rows_that_read_more_than_the_mean_prompt_are_shorter(self) -> None:
        made, decode = budget(), row_of(waiting("decode"), 1, 6)
        first, last = (row_of(waiting("p", prompt_len=90_000), 2_000, at) for at in (0, 80_000))
        assert made.tokens_within([decode, first], 0.08) is None
        keep = made.tokens_within([decode, last], 0.08)
        assert keep is not None
        assert LEAST <= keep < 2_000
        assert made.tokens_within([decode], 0.08) is None
        assert made.tokens_within([last], 0.08) is None
        assert made.tokens_within([decode, last], 1e-6) == LEAST


class EvenTimes(KnownTimes):
    """Step times of 20 us a token at any size, and 10 ms for decodes."""

    def seconds(self, shape: StepShape) -> float:
        return (0.01 if shape.decodes else 0.0) + 20e-6 * shape.new


class TestAlike:
    """Tests of the choice among sizes of equal cost per token, by the work that waits for the
    step.
    """

    def chosen(self, decodes: StepShape, queued: int) -> int:
        made = PrefillBudget(StepLimits(WHOLE, 256, MAX_STEP_S), EvenTimes())
        made.admitted(4_000, 0)
        return of_others(made, decodes, WaitingPrompts(0, 0, queued))

    def test_the_smallest_where_most_decode(self) -> None:
        assert 64 <= self.chosen(MANY, 1) <= 1024
        assert self.chosen(MANY, 1) < self.chosen(MANY, 200)

    def test_the_largest_where_most_wait(self) -> None:
        assert self.chosen(MANY, 200) == WHOLE
        assert self.chosen(StepShape(), 4) == WHOLE


class MixtureTimes(KnownTimes):
    """Step times of a mixture of experts; the predicted times of decodes alone are `too_dear` times
    too long.
    """

    def __init__(self, too_dear: float) -> None:
        super().__init__()
        self._too_dear = too_dear

    def seconds(self, shape: StepShape) -> float:
        takes = seconds_of(MixtureModel(), shape)
        return takes if shape.new else self._too_dear * takes


class TestDecodesAlone:
    """Tests of the time of decodes alone: prompts do not pay for it, and its prediction may be
    wrong.
    """

    def chosen(self, too_dear: float, decodes: int, queued: int) -> int:
        made = PrefillBudget(StepLimits(WHOLE, 256, MAX_STEP_S), MixtureTimes(too_dear))
        made.admitted(1_024, 0)
        shape = StepShape(decodes, decodes * 1_100)
        return of_others(made, shape, WaitingPrompts(0, 0, queued))

    @pytest.mark.parametrize("too_dear", [1.0, 1.5, 3.0])
    def test_a_small_step_does_not_seem_free_if_they_seem_dear(self, too_dear: float) -> None:
        assert self.chosen(too_dear, decodes=88, queued=40) > MOST_NEW

    @pytest.mark.parametrize("too_dear", [1.0, 1.1, 3.0])
    def test_the_last_prompts_of_many_are_not_computed_bit_by_bit(self, too_dear: float) -> None:
        assert self.chosen(too_dear, decodes=250, queued=4) >= 512


class LargeAreCheap(EvenTimes):
    """Step times in which a token in a step without a graph costs a tenth less."""

    def seconds(self, shape: StepShape) -> float:
        return super().seconds(shape) - (2e-6 * shape.new if shape.new > MOST_NEW else 0.0)


class TestLaunches:
    def chosen(self, launch_s: float, queued: int) -> int:
        times = LargeAreCheap()
        times.launched(StepShape(new=2 * MOST_NEW), launch_s)
        made = PrefillBudget(StepLimits(WHOLE, 256, MAX_STEP_S), times)
        made.admitted(4_000, 0)
        return of_others(made, MANY, WaitingPrompts(0, 0, queued))

    def test_who_comes_while_a_step_is_launched_waits_for_the_next(self) -> None:
        assert self.chosen(0.001, queued=1) > MOST_NEW
        assert self.chosen(0.03, queued=1) <= MOST_NEW

    def test_where_most_wait_that_is_no_matter(self) -> None:
        assert self.chosen(0.03, queued=200) > MOST_NEW


class TestNewcomers:
    def test_they_have_as_much_as_fits(self) -> None:
        new = budget().of_newcomers(MANY, WHOLE)
        assert 1_500 < new < WHOLE
        assert seconds(MANY, new) <= MAX_STEP_S
        assert budget().of_newcomers(StepShape(), WHOLE) == WHOLE

    def test_others_have_nothing_beside_a_long_one(self) -> None:
        waiting = WaitingPrompts(1, 8_000, 40)
        assert of_others(budget(), FEW, waiting, newcomers=2_000) == 0
        assert of_others(budget(), FEW, waiting) > 0  # positive control: a step without newcomers

    def test_beside_a_short_one_a_step_is_no_shorter_than_its_fixed_cost_asks(self) -> None:
        new = of_others(budget(), FEW, WaitingPrompts(1, 8_000, 40), newcomers=20)
        assert new > 0
        assert seconds(FEW, 20 + new) <= FEWEST_TIMES * seconds(FEW, 0)

    def test_one_that_may_come_waits_for_little(self) -> None:
        waiting = WaitingPrompts(1, 8_000, 40)
        short, long = (of_others(budget(), FEW, waiting, returning=n) for n in (500, 32_000))
        assert seconds(FEW, short) <= FEWEST_TIMES * seconds(FEW, 0)
        assert short < long
        assert seconds(FEW, long) <= MAX_STEP_S

    def test_after_a_whole_step_others_have_one(self) -> None:
        made, turns = budget(), []
        for _ in range(12):
            turns.append(made.is_others_turn)
            made.decided(0 if turns[-1] else 2_000, 300 if turns[-1] else 0, others_wait=True)
        assert turns == [*[False] * 5, True, *[False] * 5, True]

    def test_others_without_work_are_owed_nothing(self) -> None:
        made = budget()
        for _ in range(20):
            made.decided(2_000, 0, others_wait=False)
        assert not made.is_others_turn


@given(st.lists(st.integers(0, 2 * WHOLE), min_size=1, max_size=60))
def test_others_are_never_left_out_for_more_than_two_whole_steps(arrivals: list[int]) -> None:
    """Include prompts other than newcomers after at most two full steps, even if newcomers fill
    every step.
    """
    made, without = budget(), 0
    for tokens in arrivals:
        newcomers = 0
        if not made.is_others_turn:
            newcomers = min(tokens, made.of_newcomers(FEW, WHOLE))
        most = WHOLE - newcomers
        others = of_others(made, FEW, WaitingPrompts(1, 9_000, 9), newcomers=newcomers, most=most)
        made.decided(newcomers, others, others_wait=True)
        without = 0 if others else without + newcomers
        assert without <= 2 * WHOLE


def tokens_of_steps(rig: Rig) -> list[list[int]]:
    """Return the numbers of new tokens of the rows in each step, except one-token rows."""
    return [[row.num_new for row in step.rows if row.num_new > 1] for step in rig.runner.steps]


def decoding(
    rows: int, max_step_s: float | None, answer: int = 100, target_itl_s: float | None = None
) -> Rig:
    """Make a rig with `rows` decodes of one flow; a token takes 20 us, and each step 4 ms more."""
    rig = Rig(
        num_blocks=4096,
        max_batch_tokens=8192,
        max_running=128,
        max_step_s=max_step_s,
        target_itl_s=target_itl_s,
        check_every=50,
    )
    rig.runner.takes = lambda step: rig.wait(4e-3 + 20e-6 * step.num_tokens)
    rig.submit(generate("measured", [9] * 400, max_tokens=1))
    rig.run()
    for number in range(rows):
        rig.submit(generate(f"decodes-{number}", [number] * 3, max_tokens=answer))
    rig.step(8)
    return rig


def ask(rig: Rig, prompts: int, tokens: int) -> None:
    """Submit prompts that share no prefix with each other or with the decodes."""
    for number in range(prompts):
        prompt = [number, *((number + at * at) % 61 for at in range(1, tokens))]
        rig.submit(generate(f"asks-{number}", prompt, max_tokens=2, namespace=OTHER))


class TestScheduler:
    @pytest.mark.parametrize(("max_step_s", "most"), [(0.02, 800), (None, 8 * 384)])
    def test_prompts_go_beside_the_decodes_as_far_as_a_step_may_go(
        self, max_step_s: float | None, most: int
    ) -> None:
        rig = decoding(56, max_step_s)
        before = len(rig.runner.steps)
        told = len(rig.link.tokens("decodes-0"))
        ask(rig, 8, 384)
        rig.step(24)
        new = [sum(rows) for rows in tokens_of_steps(rig)[before:]]
        assert most // 4 < max(new) <= most
        assert sum(new) == 8 * 384
        for number in range(56):  # every decode gets a token in every step
            assert len(rig.link.tokens(f"decodes-{number}")) == told + 24

    def test_all_get_the_tokens_that_they_get_without_it(self) -> None:
        told = []
        for max_step_s, target_itl_s in ((None, None), (0.02, None), (1e-4, None), (0.02, 0.005)):
            rig = decoding(30, max_step_s, answer=30, target_itl_s=target_itl_s)
            ask(rig, 12, 300)
            rig.run()
            told.append([rig.link.tokens(f"asks-{number}") for number in range(12)])
            rig.expect_nothing_left()
        assert all(one == told[0] for one in told)


def any_mix(seed: int) -> list[Generate]:
    """Draw random short and long prompts of two flows, some with shared prefixes."""
    drawn, asked = Random(seed), list[Generate]()
    for number in range(40):
        shared = [(7 * at) % 61 for at in range(drawn.choice([0, 100, 500]))]
        own = [drawn.randrange(1, 61) for _ in range(drawn.choice([1, 60, 300, 700]))]
        flow, most = drawn.choice("xxxy"), drawn.choice([1, 8, 40])
        asked.append(generate(f"asked-{number}", shared + own, max_tokens=most, flow=flow))
    return asked


def serve(
    asked: list[Generate], seed: int, max_step_s: float | None, target_itl_s: float | None = None
) -> Rig:
    """Serve the prompts beside decodes in a pool too small for all of them, and cancel every
    fifth.
    """
    drawn = Random(seed)
    rig = Rig(
        num_blocks=drawn.choice([500, 1_000]),
        max_batch_tokens=2_048,
        max_running=24,
        overlap_scheduling=drawn.choice([False, True]),
        max_step_s=max_step_s,
        target_itl_s=target_itl_s,
        check_every=10,
    )
    rig.runner.waits = lambda: rig.wait(2e-5 * rig.runner.steps[-1].num_tokens)
    for number, request in enumerate(asked):
        rig.submit(request)
        rig.step(drawn.randrange(2))
        if number % 5 == 4:
            rig.link.say(Cancel(asked[drawn.randrange(number + 1)].request_id))
    rig.run()
    return rig


def is_whole(rig: Rig, request: Generate) -> bool:
    """Return whether a request was answered to its last token."""
    return rig.finished(request.request_id).reason == "length"


@pytest.mark.parametrize("seed", [*range(2), *in_the_zoo(*range(2, 5))])
def test_any_mix_is_served_whole_and_nothing_is_left(seed: int) -> None:
    asked = any_mix(seed)
    bounded, whole = (serve(asked, seed, most) for most in (0.004, None))
    promised = serve(asked, seed, 0.02, target_itl_s=0.003)
    assert tokens_of_steps(bounded) != tokens_of_steps(whole)
    for rig in (bounded, whole, promised):
        assert max(step.num_tokens for step in rig.runner.steps) <= rig.max_batch_tokens
        assert min(row.num_new for step in rig.runner.steps for row in step.rows) > 0
        ended = [request for request in asked if is_whole(rig, request)]
        assert len(ended) >= len(asked) * 4 // 5
        for request in ended:
            rig.expect_output(request)
        rig.expect_nothing_left()


@pytest.mark.parametrize("seed", range(6))
def test_newcomers_beside_a_flood_never_make_a_step_too_large(seed: int) -> None:
    """Keep steps small beside a flood.

    Newcomers take slots and blocks from other flows, one-token prompts arrive, and answers fill the
    step.
    """
    drawn = Random(seed)
    rig = Rig(
        num_blocks=drawn.choice([60, 300]),
        max_batch_tokens=drawn.choice([8, 32]),
        max_running=8,
        max_step_s=drawn.choice([None, 1e-5, 0.004]),
        quantum=64,
    )
    rig.runner.takes = lambda step: rig.wait(1e-4 * (4 + step.num_tokens))
    asked = []
    for number in range(60):
        flow = "flood" if drawn.random() < 0.7 else f"guest{drawn.randrange(4)}"
        prompt = [drawn.randrange(1, 61) for _ in range(drawn.choice([1, 2, 9, 60]))]
        asked.append(generate(f"{number}", prompt, max_tokens=drawn.choice([1, 12]), flow=flow))
        rig.submit(asked[-1])
        rig.step(drawn.randrange(3))
        rig.wait(drawn.choice([0.0, 0.05]))
    rig.run()
    for request in asked:
        rig.expect_output(request)
    steps = rig.runner.steps
    assert max(step.num_tokens for step in steps) <= rig.max_batch_tokens
    assert min(row.num_new for step in steps for row in step.rows) > 0
    rig.expect_nothing_left()
