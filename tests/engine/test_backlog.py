"""How what waits is spread over steps."""

from __future__ import annotations

from random import Random

import pytest

from engine.backlog import CROWD, LEAST, Backlog
from engine.draft import StepLimits
from engine.messages import Cancel, Generate, Tokens
from engine.step_sizes import SHARING_NEW_TOKENS
from tests.engine.rig import OTHER, Rig, generate

STEPS = 16


def backlog(usual: int | None = 400) -> Backlog:
    made = Backlog(STEPS)
    if usual is not None:
        made.admitted(usual)
    return made


class TestIsSpread:
    def test_with_no_steps_nothing_is(self) -> None:
        assert not Backlog(0).is_spread(40, 50)
        assert Backlog(1).is_spread(40, 50)

    def test_without_decodes_nobody_would_wait_for_the_step(self) -> None:
        assert not backlog().is_spread(0, 10)
        assert backlog().is_spread(1, 10)

    @pytest.mark.parametrize("decodes", [1, 20, CROWD - 1])
    def test_what_a_crowd_waits_for_is_not(self, decodes: int) -> None:
        assert not backlog().is_spread(decodes, CROWD)
        assert backlog().is_spread(decodes, CROWD - 1)


class TestPart:
    def test_prompts_of_which_nothing_is_known_are_not_held_up(self) -> None:
        assert backlog(None).part(40, 100_000, 10) is None
        assert backlog(None).part(40, 100_000, 0) == 100_000 // STEPS

    def test_what_waits_is_divided_by_the_steps(self) -> None:
        assert backlog().part(60, 96_000, 0) == 6_000
        assert backlog(400).part(32, 80_000, 39) == (80_000 + 39 * 400) // STEPS

    @pytest.mark.parametrize("decodes", [2, 20, 64])
    def test_little_that_waits_fills_the_cheapest_room(self, decodes: int) -> None:
        part = backlog().part(decodes, 200, 0)
        assert part is not None
        assert LEAST <= part < 2 * LEAST

    @pytest.mark.parametrize("decodes", range(1, CROWD))
    def test_the_least_is_a_whole_room_whether_decodes_share_or_not(self, decodes: int) -> None:
        assert backlog().part(decodes, 1, 0) == LEAST
        assert LEAST in SHARING_NEW_TOKENS

    def test_for_few_decodes_prompts_wait_for_less(self) -> None:
        parts = [backlog().part(decodes, 64_000, 0) for decodes in (1, 2, 8, 32, 64)]
        assert parts == [128_000, 64_000, 16_000, 4_000, 4_000]

    def test_the_last_prompts_say_what_the_next_is_like(self) -> None:
        made = backlog(10_000)
        for _ in range(40):
            made.admitted(1_000)
        part = made.part(64, 0, 160)
        assert part is not None
        assert 10_000 <= part <= 10_100


def tokens_of_steps(rig: Rig) -> list[list[int]]:
    """The numbers of new tokens of the rows of each step, those of one token left out."""
    return [[row.num_new for row in step.rows if row.num_new > 1] for step in rig.runner.steps]


def decoding(rows: int, backlog_steps: int, answer: int = 100) -> Rig:
    """So many sequences of one flow that decode."""
    rig = Rig(
        num_blocks=4096,
        max_batch_tokens=8192,
        max_running=128,
        backlog_steps=backlog_steps,
        check_every=50,
    )
    for number in range(rows):
        rig.submit(generate(f"decodes-{number}", [number] * 3, max_tokens=answer))
    rig.step(2)
    return rig


def ask(rig: Rig, prompts: int, tokens: int, flow: str = "flow", first: int = 0) -> None:
    """Prompts that have nothing in common, neither with each other nor with those that decode."""
    for number in range(first, first + prompts):
        prompt = [number, *((number + at * at) % 61 for at in range(1, tokens))]
        asked = generate(f"{flow}-{number}", prompt, max_tokens=2, flow=flow, namespace=OTHER)
        rig.submit(asked)


class TestScheduler:
    def test_a_turn_of_eight_prompts_goes_beside_the_decodes_step_by_step(self) -> None:
        rig = decoding(56, STEPS)
        before = len(rig.runner.steps)
        ask(rig, 8, 384)
        rig.step(13)
        new = [sum(rows) for rows in tokens_of_steps(rig)[before:]]
        assert max(new) == LEAST
        assert sum(new) == 8 * 384
        assert new[:11] == [LEAST] * 11
        for number in range(8):
            assert rig.link.tokens(f"flow-{number}")

    def test_without_it_they_are_computed_at_once(self) -> None:
        rig = decoding(56, 0)
        before = len(rig.runner.steps)
        ask(rig, 8, 384)
        rig.step()
        assert sum(tokens_of_steps(rig)[before]) == 8 * 384

    def test_every_decode_goes_on_in_every_step(self) -> None:
        rig = decoding(56, STEPS)
        told = len(rig.link.tokens("decodes-0"))
        ask(rig, 8, 384)
        rig.step(10)
        for number in range(56):
            assert len(rig.link.tokens(f"decodes-{number}")) == told + 10

    def test_a_crowd_beside_few_is_computed_in_large_steps(self) -> None:
        rig = decoding(4, STEPS)
        ask(rig, 20, 384)  # by which it is known how much prompts have to compute
        rig.step(45)
        before = len(rig.runner.steps)
        ask(rig, 20, 384, first=20)
        rig.step()
        assert sum(tokens_of_steps(rig)[before]) > 3_000

    def test_of_a_crowd_a_step_takes_as_much_as_it_can(self) -> None:
        rig = decoding(56, STEPS)
        before = len(rig.runner.steps)
        ask(rig, CROWD - 56, 384)
        rig.step()
        assert sum(tokens_of_steps(rig)[before]) > 5_000

    def test_a_flow_that_had_nothing_running_waits_for_nobody(self) -> None:
        rig = decoding(56, STEPS)
        ask(rig, 1, 2_000, flow="newcomer")
        rig.step()
        assert tokens_of_steps(rig)[-1] == [2_000]
        [first] = [e for e in rig.link.events("newcomer-0") if isinstance(e, Tokens)]
        assert first.cached_tokens == 0

    def test_all_get_the_tokens_that_they_get_without_it(self) -> None:
        told = []
        for steps in (0, STEPS, 1):
            rig = decoding(30, steps, answer=30)
            ask(rig, 12, 300)
            rig.run()
            told.append([rig.link.tokens(f"flow-{number}") for number in range(12)])
            rig.expect_nothing_left()
        assert told[0] == told[1] == told[2]


def any_mix(seed: int) -> list[Generate]:
    """Prompts of some tokens to many, of which some begin alike, of two flows."""
    drawn, asked = Random(seed), list[Generate]()
    for number in range(40):
        shared = [(7 * at) % 61 for at in range(drawn.choice([0, 100, 500]))]
        own = [drawn.randrange(1, 61) for _ in range(drawn.choice([1, 60, 300, 700]))]
        flow, most = drawn.choice("xxxy"), drawn.choice([1, 8, 40])
        asked.append(generate(f"asked-{number}", shared + own, max_tokens=most, flow=flow))
    return asked


def serve(asked: list[Generate], seed: int, backlog_steps: int) -> Rig:
    """Ask them beside decodes of a pool that is too small for all, and let every fifth leave."""
    drawn = Random(seed)
    rig = Rig(
        num_blocks=drawn.choice([500, 1_000]),
        max_batch_tokens=2_048,
        max_running=24,
        steps_ahead=drawn.choice([0, 1]),
        backlog_steps=backlog_steps,
        check_every=10,
    )
    for number, request in enumerate(asked):
        rig.submit(request)
        rig.step(drawn.randrange(2))
        if number % 5 == 4:
            rig.link.say(Cancel(asked[drawn.randrange(number + 1)].request_id))
    rig.run()
    return rig


def is_whole(rig: Rig, request: Generate) -> bool:
    """Whether it was told all that it asked for, and not left."""
    return rig.finished(request.request_id).reason == "length"


@pytest.mark.parametrize("seed", range(8))
def test_any_mix_is_served_whole_and_nothing_is_left(seed: int) -> None:
    asked = any_mix(seed)
    spread, whole = (serve(asked, seed, steps) for steps in (24, 0))
    assert tokens_of_steps(spread) != tokens_of_steps(whole)
    for rig in (spread, whole):
        ended = [request for request in asked if is_whole(rig, request)]
        assert len(ended) >= len(asked) * 4 // 5
        for request in ended:
            rig.expect_output(request)
        rig.expect_nothing_left()


def test_steps_are_not_less_than_none() -> None:
    with pytest.raises(ValueError, match="backlog_steps"):
        StepLimits(4, 4, backlog_steps=-1)
    assert StepLimits(4, 4, backlog_steps=0).backlog_steps == 0
