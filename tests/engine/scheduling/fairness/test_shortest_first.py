"""The shortest prompt of a flow goes first, even if a longer one was begun before it."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.engine.rigs.rig import Rig, generate
from tests.engine.scheduling.test_scheduler import shape

BUDGET = 10


def prompt(number: int, tokens: int) -> list[int]:
    """Return a prompt of `tokens` tokens that shares no prefix with other numbers' prompts."""
    return [number % 60, number // 60, *(number * at % 60 for at in range(tokens - 2))]


def begun(patience: int = 8) -> Rig:
    """Return an engine that has computed the first 10 tokens of a prompt of 50."""
    rig = Rig(max_batch_tokens=BUDGET, patience=patience)
    rig.submit(generate("long", prompt(1, 50), max_tokens=1))
    rig.step()
    return rig


class TestWithinAFlow:
    def test_a_shorter_prompt_goes_before_the_rest_of_a_longer_one(self) -> None:
        rig = begun()
        short = generate("short", prompt(2, 6), max_tokens=2)
        rig.submit(short)
        rig.step()
        assert shape(rig) == [("short", 0, 6), ("long", 10, 4)]
        rig.run()
        rig.expect_output(short)
        rig.expect_output(generate("long", prompt(1, 50), max_tokens=1))

    def test_of_those_that_were_begun_the_shortest_goes_on(self) -> None:
        rig = begun()
        rig.submit(generate("middle", prompt(2, 25), max_tokens=1))
        rig.step()
        assert shape(rig) == [("middle", 0, 10)]
        rig.step()
        assert shape(rig) == [("middle", 10, 10)]
        rig.submit(generate("short", prompt(3, 3), max_tokens=1))
        rig.step()
        assert shape(rig) == [("short", 0, 3), ("middle", 20, 5), ("long", 10, 2)]

    def test_what_is_left_counts(self) -> None:
        rig = begun()
        rig.step(3)  # ten tokens of the prompt are left
        rig.submit(generate("equal", prompt(2, 10), max_tokens=1))
        rig.step()
        assert shape(rig) == [("long", 40, 10)]

    @pytest.mark.parametrize(("patience", "first"), [(3, 3), (8, 8), (1000, 40)])
    def test_a_long_prompt_is_passed_over_a_bounded_number_of_times(
        self, patience: int, first: int
    ) -> None:
        """Let shorter prompts overtake a long one, but only `patience` times.

        Positive control: without the bound, the last case waits as long as short prompts arrive.
        """
        rig = begun(patience=patience)
        for number in range(2, 42):  # each short prompt takes one step
            rig.submit(generate(f"short{number}", prompt(number, BUDGET), max_tokens=1))
        rig.step(50)
        computed = [row[0] for step in range(len(rig.runner.steps)) for row in shape(rig, step)]
        assert computed.index("long", 1) - 1 == first
        assert set(computed) == {"long", *(f"short{number}" for number in range(2, 42))}


class TestAmongFlows:
    def test_no_other_flow_gives_way(self) -> None:
        rig = begun()
        rig.submit(generate("other's long", prompt(2, 30), flow="other", max_tokens=1))
        rig.step()  # this prompt has begun too, since nothing of its flow was running
        rig.submit(generate("short", prompt(3, 4), flow="other", max_tokens=1))
        rig.step(2)
        rows = shape(rig, -2) + shape(rig)
        assert not any(name == "short" for name, _, _ in rows)
        assert any(name == "long" for name, _, _ in rows)

    @pytest.mark.parametrize("patience", [0, 8])
    @pytest.mark.parametrize("seed", range(6))
    def test_a_flow_gains_nothing_by_prompts_of_many_lengths(
        self, patience: int, seed: int
    ) -> None:
        """Send prompts of many lengths in one of two flows that always have waiting prompts: both
        get equal service.
        """
        drawn, quantum, running, largest = random.Random(seed), 16, 4, 60
        rig = Rig(
            max_batch_tokens=BUDGET,
            max_running=running,
            quantum=quantum,
            patience=patience,
            num_blocks=400,
            check_every=50,
        )
        served, sent = Counter[str](), 0
        for _ in range(250):
            for flow, lengths in (("mixed", (4, 8, 60)), ("even", (24, 24, 24))):
                for _ in range(6 - rig.scheduler.queue.num_waiting(flow)):
                    sent += 1
                    asked = prompt(sent, drawn.choice(lengths))
                    rig.submit(generate(f"{flow}-{sent}", asked, flow=flow, max_tokens=1))
            rig.step()
            for name, _, tokens in shape(rig):
                served[name.split("-")[0]] += tokens
            assert abs(served["mixed"] - served["even"]) <= 2 * quantum + running * largest
        assert served["mixed"] > 1000
