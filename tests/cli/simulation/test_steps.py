"""Simulated engine steps, compared with results by hand and with times fitted to an H200."""

from __future__ import annotations

import pytest

from cli.plan.machine import MachineModel, ModelShape
from cli.simulation.steps import Gap, Job, SimulatedStepBounds, SteppedEngine, VirtualClock, gap_at
from engine.scheduling.step_times import StepShape
from tests.doubles.modelled.device import StepModel
from tests.doubles.modelled.shapes import seconds_of

SHAPE, MACHINE = ModelShape(), MachineModel()


class Rig:
    """One simulated engine, and the times of its requests' first tokens and ends."""

    def __init__(self, bounds: SimulatedStepBounds | None = None) -> None:
        self.clock = VirtualClock()
        self.engine = SteppedEngine(self.clock, SHAPE, MACHINE, bounds or SimulatedStepBounds())
        self.first: dict[str, float] = {}
        self.over: dict[str, float] = {}

    def ask(self, name: str, at: float, tokens: int, output: int) -> None:
        job = Job(
            tokens,
            0,
            output,
            lambda: self.first.update({name: self.clock.now}),
            lambda: self.over.update({name: self.clock.now}),
        )
        self.clock.at(at, lambda: self.engine.add(job))


def test_a_prompt_alone_takes_what_it_is_predicted_to_take() -> None:
    rig = Rig()
    rig.ask("a", 1.0, 8000, 101)
    rig.clock.finish()
    assert rig.first["a"] == pytest.approx(1.0 + MACHINE.prefill_seconds(SHAPE, 8000))
    decodes = 100 * MACHINE.step_seconds(SHAPE, 1, 8001 + 50)
    assert rig.over["a"] == pytest.approx(rig.first["a"] + decodes)
    [gap] = rig.engine.gaps
    assert gap.seconds == pytest.approx(decodes / 100)
    assert gap.tokens == 100


def test_few_tokens_take_as_long_as_reading_the_weights() -> None:
    rig = Rig()
    rig.ask("a", 0.0, 1, 1)
    rig.clock.finish()
    assert rig.first["a"] == MACHINE.step_seconds(SHAPE, 1, 0.0)
    assert rig.over == {}, "it is over with its first token"


def test_prompts_are_computed_in_order_and_share_a_step_where_they_fit() -> None:
    rig = Rig()
    for name, tokens in (("a", 6000), ("b", 6000), ("c", 100)):
        rig.ask(name, 0.0, tokens, 1)
    rig.clock.finish()
    assert 0 < rig.first["a"] < rig.first["b"] == rig.first["c"]


def test_a_prompt_beside_decodes_comes_in_chunks_that_keep_steps_short() -> None:
    rig = Rig(SimulatedStepBounds(max_step_s=0.06))
    rig.ask("a", 0.0, 1000, 400)
    rig.ask("b", 0.5, 16_000, 2)
    rig.clock.finish()
    long = [gap for gap in rig.engine.gaps if gap.seconds > 0.02]
    assert max(gap.seconds for gap in long) < 0.07
    assert len(long) > 5
    assert rig.first["b"] - 0.5 > MACHINE.prefill_seconds(SHAPE, 16_000)
    assert sum(gap.tokens for gap in rig.engine.gaps) == 399 + 1, "no token is lost to a cut"
    wide = Rig(SimulatedStepBounds(max_step_s=10.0))
    wide.ask("a", 0.0, 1000, 400)
    wide.ask("b", 0.5, 16_000, 2)
    wide.clock.finish()
    # positive control: without the bound there are long gaps
    assert max(gap.seconds for gap in wide.engine.gaps) > 0.2
    assert wide.first["b"] < rig.first["b"]


def test_one_that_comes_while_others_decode_waits_for_the_step_that_is_computed() -> None:
    rig = Rig()
    rig.ask("a", 0.0, 10, 1000)
    rig.ask("b", 1.0, 10, 1)
    rig.clock.finish()
    step = MACHINE.step_seconds(SHAPE, 1, 500)
    assert 1.0 < rig.first["b"] < 1.0 + 3 * step


def test_no_more_rows_than_there_is_room_for() -> None:
    rig = Rig(SimulatedStepBounds(rows=2))
    for name in "abc":
        rig.ask(name, 0.0, 10, 50)
    rig.clock.finish()
    assert rig.first["c"] >= min(rig.over.values())


def test_percentiles_count_tokens() -> None:
    gaps = [Gap(0.1, 1), Gap(0.01, 98), Gap(0.05, 1)]
    assert [gap_at(gaps, percent) for percent in (50, 98, 99, 100)] == [0.01, 0.01, 0.05, 0.1]
    assert gap_at([], 50) == 0.0


@pytest.mark.parametrize(
    ("rows", "context", "new"),
    [(1, 1000, 0), (32, 4000, 0), (128, 2000, 0), (16, 4000, 1024), (0, 0, 8192), (64, 1000, 512)],
)
def test_a_step_is_about_as_long_as_on_the_modelled_device(
    rows: int, context: int, new: int
) -> None:
    fitted = StepModel()
    decodes = MACHINE.step_seconds(SHAPE, rows, context) if rows else 0.0
    ours = decodes + MACHINE.prefill_seconds(SHAPE, new)
    shape = StepShape(decodes=rows, keys=rows * context, new=new, pairs=new * new / 2)
    assert 0.6 < ours / seconds_of(fitted, shape) < 1.6
