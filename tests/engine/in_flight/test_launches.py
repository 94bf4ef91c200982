"""Prompt costs are learned only from steps with a known start and end.

A launch for which the device has no memory is repeated with a smaller step.
"""

from __future__ import annotations

import pytest

from engine.link.messages import Generate
from engine.scheduling.step_times import MEASURED_TOKENS, StepShape
from tests.engine.rigs.rig import Rig, generate


def ahead() -> Rig:
    """Make a rig with steps of 64 tokens, each launched before the previous one is settled."""
    rig = Rig(max_batch_tokens=64, overlap_scheduling=True, context_len=512, num_blocks=256)
    rig.runner.takes = lambda step: rig.wait(0.001)  # the host's time for a launch
    return rig


def prompt_of(tokens: int) -> Generate:
    return generate("a", [n % 60 for n in range(tokens)], max_tokens=1)


class TestMeasuring:
    @pytest.mark.parametrize("tokens", [MEASURED_TOKENS - 1, MEASURED_TOKENS])
    def test_a_step_of_few_prompt_tokens_teaches_nothing(self, tokens: int) -> None:
        rig = Rig(max_batch_tokens=128)
        rig.runner.takes = lambda step: rig.wait(0.001)
        rig.submit(generate("a", [n % 60 for n in range(tokens)], max_tokens=4))
        rig.run()
        assert rig.core.components.times.is_measured is (tokens == MEASURED_TOKENS)

    def test_a_step_counts_from_the_end_of_the_one_before_to_its_own(self) -> None:
        rig = ahead()
        rig.runner.waits = lambda: rig.wait(0.01)
        rig.submit(prompt_of(5 * 64))
        rig.run()
        # The launch, the wait, and the rig's own time for an iteration of the step loop.
        assert rig.core.components.times.prefill(0, 64) == pytest.approx(0.012, rel=0.1)

    def test_a_step_that_ended_before_the_host_looked_teaches_nothing(self) -> None:
        rig = ahead()
        rig.submit(prompt_of(5 * 64))
        rig.run()
        assert not rig.core.components.times.is_measured

    def test_a_step_that_began_at_a_time_unknown_teaches_nothing(self) -> None:
        rig = ahead()
        waits = iter((0.0, 0.01, 0.0, 0.01))
        rig.runner.waits = lambda: rig.wait(next(waits))
        rig.submit(prompt_of(4 * 64))
        rig.run()
        assert list(waits) == []
        assert not rig.core.components.times.is_measured

    def test_it_began_when_the_one_before_is_predicted_to_have_ended(self) -> None:
        """Measure a step from the predicted end of the short step before it.

        The host misses that end, because it is still launching the next step.
        """
        rig = ahead()
        times = rig.core.components.times
        times.settled(StepShape.prompt(0, 64), 0.004)
        waits = iter((0.0, 0.03, 0.0, 0.03))
        rig.runner.waits = lambda: rig.wait(next(waits))
        rig.submit(prompt_of(4 * 64))
        rig.run()
        assert list(waits) == []
        assert times.prefill(0, 64) > 0.015

    def test_it_did_not_begin_before_it_was_launched(self) -> None:
        """Measure a step from its launch, even if many short steps ended before it, unseen by the
        host.
        """
        rig, seen = ahead(), 30
        times = rig.core.components.times
        times.settled(StepShape.prompt(0, 64), 0.0005)
        waits = iter((*[0.0] * seen, 0.01))
        rig.runner.waits = lambda: rig.wait(next(waits, 0.0))
        rig.submit(generate("a", range(1), max_tokens=seen + 1))
        rig.run()
        assert not list(waits), "the control: one end was seen"
        assert times.seconds(StepShape(decodes=1, keys=seen)) < 0.02


class TestOutOfMemory:
    def test_once_is_survived_by_all(self) -> None:
        rig = Rig(max_batch_tokens=32)
        requests = [generate(str(n), range(n, n + 20), max_tokens=4) for n in range(4)]
        rig.submit(generate("warm", range(18), max_tokens=12))
        rig.step(2)
        rig.runner.raising = [MemoryError()]
        for request in requests:
            rig.submit(request)
        rig.run()
        assert rig.runner.raising == []
        for request in requests:
            rig.expect_output(request)
        rig.expect_output(generate("warm", range(18), max_tokens=12))
        rig.expect_nothing_left()

    def test_the_retry_is_smaller(self) -> None:
        rig = Rig(max_batch_tokens=32, max_running=4)
        rig.runner.raising = [MemoryError()]
        rig.submit(generate("a", range(30)))
        rig.step(2)
        assert rig.runner.steps[-1].num_tokens == 15

    def test_twice_in_a_row_fails_the_largest_alone(self) -> None:
        rig = Rig(max_batch_tokens=32)
        small = generate("small", [1, 2, 3], max_tokens=12)
        rig.submit(small)
        rig.step(2)
        rig.runner.raising = [MemoryError(), MemoryError()]
        rig.submit(generate("large", range(30)))
        rig.run()
        assert rig.failed("large").code == "engine_failure"
        rig.expect_output(small)
        rig.expect_nothing_left()

    def test_a_copy_that_was_half_done_is_done_again(self) -> None:
        rig = Rig(max_batch_tokens=32)
        rig.submit(generate("first", range(10), max_tokens=1))
        rig.run()
        second = generate("second", [*range(7), 50, 51], max_tokens=4)
        rig.submit(second)
        rig.runner.raising = [MemoryError()]
        rig.run()
        assert rig.finished("second").reused.tokens == 7
        rig.expect_output(second)

    def test_another_error_ends_the_step_loudly(self) -> None:
        rig = Rig()
        rig.runner.raising = [RuntimeError("CUDA error: an illegal memory access")]
        rig.submit(generate("a", range(6)))
        with pytest.raises(RuntimeError, match="CUDA error"):
            rig.step()
