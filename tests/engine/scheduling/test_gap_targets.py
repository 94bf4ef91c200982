"""Target times between a sequence's tokens: how they are chosen, and the counts of gaps."""

from __future__ import annotations

import logging

import pytest

from engine.link.messages import Priority
from engine.link.stats.gap_stats import GapStats
from engine.scheduling.gap_targets import FEWEST_GAPS, NUM_PERIODS, PERIOD_S, GapTargets
from engine.scheduling.scheduled_rows import row_of
from engine.scheduling.step_builder import StepLimits
from engine.scheduling.step_times import StepShape, StepTimes
from engine.sequences.sequence import Sequence
from tests.engine.rigs.sequences import waiting

OWN_S = 0.025
STEP_S = 0.004


def targets(own_s: float | None = OWN_S, stages: int = 1) -> GapTargets:
    """Make the targets of an engine whose decode steps take 4 ms."""
    times = StepTimes()
    for _ in range(20):
        times.settled(StepShape(1), STEP_S)
    return GapTargets(StepLimits(64, 8, stages=stages, target_itl_s=own_s), times)


def decoding(target_s: float = 0.0, priority: Priority = "interactive") -> Sequence:
    """Make a sequence in its decode phase."""
    sequence = waiting("decodes")
    sequence.num_computed = 7
    sequence.target_itl_s, sequence.priority = target_s, priority
    return sequence


def send(made: GapTargets, sequence: Sequence, gaps: list[float], now: float = 100.0) -> float:
    """Send a token after each of `gaps`, in seconds; return the time of the last token."""
    made.sent(sequence, now)
    for gap in gaps:
        now += gap
        made.sent(sequence, now)
    return now


@pytest.mark.parametrize(
    ("asked_s", "priority", "own_s", "expected"),
    [
        (0.0, "interactive", None, None),
        (0.0, "interactive", OWN_S, OWN_S),
        (0.05, "interactive", OWN_S, 0.05),
        (0.01, "interactive", None, 0.01),
        (0.01, "batch", OWN_S, None),
    ],
)
def test_a_sequence_has_its_tenants_target_or_the_engines_and_none_of_the_batch_class(
    asked_s: float, priority: Priority, own_s: float | None, expected: float | None
) -> None:
    assert targets(own_s).of(decoding(asked_s, priority)) == expected


def test_a_step_has_the_shortest_target_of_its_decodes_divided_between_stages() -> None:
    made = [decoding(0.04), decoding(0.02), decoding(0.01, "batch")]
    assert targets(None).of_step(made) == 0.02
    assert targets(None, stages=2).of_step(made) == 0.01
    assert targets(OWN_S).of_step(()) is None
    assert targets(None).of_step(made[2:]) is None


def test_gaps_are_counted_beside_the_target_and_tokens_sent_together_have_none() -> None:
    made = targets()
    send(made, decoding(), [0.02, 0.0, 0.03, 0.02])
    stats = made.stats()
    assert (stats.gaps, stats.late, stats.recent_gaps, stats.recent_late) == (3, 1, 3, 1)
    send(made, decoding(priority="batch"), [1.0])
    assert made.stats().gaps == 3


def test_after_a_minute_late_gaps_are_forgotten_but_counted() -> None:
    made = targets()
    now = send(made, decoding(), [0.1] * 10)
    assert made.stats().is_missed
    send(made, decoding(), [0.02] * 10, now + 2 * PERIOD_S * NUM_PERIODS)
    stats = made.stats()
    assert (stats.gaps, stats.late, stats.recent_gaps, stats.recent_late) == (20, 10, 10, 0)


def test_the_log_says_once_that_targets_are_missed_and_once_that_they_are_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    made, sequence = targets(), decoding()
    late_and_not = [0.1, 0.02] * FEWEST_GAPS
    now = send(made, sequence, late_and_not)
    made.settled([row_of(sequence, 1)])
    now = send(made, sequence, [0.02] * 2 * int(PERIOD_S / 0.02), now)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "exceed their targets" in caplog.text
    send(made, sequence, [0.02] * int(2 * PERIOD_S * NUM_PERIODS / 0.02), now)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "again" in caplog.text


def test_a_late_step_tells_what_its_decodes_take_without_prompts() -> None:
    made, sequence = targets(), decoding()
    rows = [row_of(sequence, 1), row_of(waiting("prompt"), 8)]
    send(made, sequence, [0.02])
    made.settled(rows)
    assert made.stats().alone_s == 0.0
    send(made, sequence, [0.1], 200.0)
    made.settled(rows)
    assert made.stats().alone_s == pytest.approx(STEP_S, rel=0.01)


@pytest.mark.parametrize(
    ("target_s", "is_too_short"), [(0.003, True), (0.005, False), (None, False)]
)
def test_a_target_below_a_step_of_one_sequence_is_too_short(
    target_s: float | None, is_too_short: bool
) -> None:
    stats = targets(target_s).stats()
    assert stats.is_too_short is is_too_short
    assert ("cannot be kept" in stats.describe()) is is_too_short


def test_counts_of_engines_add_up() -> None:
    one = GapStats(target_s=0.02, gaps=4, late=1, recent_gaps=3, recent_late=1, one_s=0.01)
    other = GapStats(target_s=0.03, gaps=5, recent_gaps=5, alone_s=0.02)
    assert one + other == GapStats(
        target_s=0.03, gaps=9, late=1, recent_gaps=8, recent_late=1, one_s=0.01, alone_s=0.02
    )
