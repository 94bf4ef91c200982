"""The model of steps of a mixture of experts predicts the measured times within a tenth."""

from __future__ import annotations

import pytest

from engine.scheduling.step_times import StepShape
from tests.doubles.modelled.mixture import MixtureModel
from tests.doubles.modelled.shapes import seconds_of

# Milliseconds of Qwen3-30B-A3B on an H200. For decodes: the median time between tokens of `ratoon
# bench --workload itl`, whose answers grow from 1,024 to 1,280 tokens. For other steps: the time in
# `benchmarks.engine.step`.
MEASURED = [
    (StepShape(1, 1_150), 3.09),
    (StepShape(32, 32 * 1_150), 15.1),
    (StepShape(128, 128 * 1_150), 20.1),
    (StepShape(256, 256 * 1_150), 26.2),
    (StepShape(64, 64 * 2_030, 384, 384 * 1_838.0), 22.9),
    (StepShape(0, 0, 8_192, 8_192 * 4_096.0), 129.0),
]


@pytest.mark.parametrize(("shape", "ms"), MEASURED)
def test_a_step_takes_what_was_measured(shape: StepShape, ms: float) -> None:
    assert 1e3 * seconds_of(MixtureModel(), shape) == pytest.approx(ms, rel=0.1)


def test_a_prompts_token_is_cheap_in_a_large_step_alone() -> None:
    small, large = (seconds_of(MixtureModel(), StepShape(new=new)) / new for new in (1_024, 8_192))
    assert small > 2 * large
