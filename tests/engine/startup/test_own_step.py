"""An engine measures one of its steps at the start, and logs a target below that time."""

from __future__ import annotations

import logging

import pytest

from engine.startup.own_step import DECODES, PROMPT_TOKENS, measure_step
from tests.engine.rigs.rig import Rig

STEP_S = 0.004


def measured(target_itl_s: float, context_len: int = 100) -> Rig:
    """Make an engine with steps of 4 ms, which it has measured."""
    rig = Rig(target_itl_s=target_itl_s, context_len=context_len)
    rig.runner.takes = lambda step: rig.wait(STEP_S) if step.rows else None
    measure_step(rig.core)
    return rig


@pytest.mark.parametrize(("target_s", "level"), [(0.001, "WARNING"), (0.025, "INFO")])
def test_a_target_below_a_step_of_one_sequence_is_told_at_the_start(
    target_s: float, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rig = measured(target_s)
    assert [record.levelname for record in caplog.records] == [level]
    assert "a step of one sequence takes" in caplog.text
    gaps = rig.core.stats().gaps
    assert gaps.one_s == pytest.approx(STEP_S, rel=0.05)
    assert gaps.is_too_short is (level == "WARNING")


def test_nothing_is_left_or_counted_of_the_measurement() -> None:
    rig = measured(0.025)
    stats = rig.core.stats()
    assert stats.steps >= DECODES
    assert (stats.generated_tokens, stats.flows, stats.gaps.gaps) == (0, {}, 0)
    assert (stats.running, stats.pool.used, stats.windows["all"].queried_tokens) == (0, 0, 0)
    assert not rig.link.sent
    rig.expect_nothing_left()


def test_a_context_that_is_too_short_to_measure_starts_as_well() -> None:
    rig = measured(0.025, context_len=PROMPT_TOKENS)
    assert rig.core.stats().gaps.one_s == 0.0
