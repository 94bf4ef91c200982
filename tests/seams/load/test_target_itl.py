"""The real scheduling core on a simulated H200 meets targets for the gaps between tokens."""

from __future__ import annotations

import math

import pytest
from msgspec import structs

from engine.link.messages import Priority
from engine.scheduling.prefill_budget import LEAST_SHARE
from engine.scheduling.step_builder import StepLimits
from engine.step import is_prefill
from tests.doubles.modelled.products import ProductModel
from tests.doubles.modelled.replay import Replay, Stream

WHOLE = 8192
MAX_STEP_S = 0.06
NOISE = 0.05
RUN_S = 4.0
SETTLING_S = 2.0  # seconds in which the predictor learns step times


def p99(gaps: list[float]) -> float:
    """Return the gap that at most one in a hundred exceeds."""
    return sorted(gaps)[math.ceil(0.99 * len(gaps)) - 1]


class Load:
    """A load of streams with long answers, beside streams that repeatedly send long prompts."""

    def __init__(
        self,
        target_itl_s: float | None,
        *,
        readers: int = 32,
        askers: int = 8,
        prompt: int = 4000,
        answer: int = 4,
        of_readers_s: float = 0.0,
        priority: Priority = "interactive",
    ) -> None:
        limits = StepLimits(WHOLE, 256, MAX_STEP_S, target_itl_s=target_itl_s)
        self.replay = Replay(limits, model=ProductModel(), noise=NOISE)
        self.readers = [self.replay.stream("reader", 200, 400) for _ in range(readers)]
        self.askers = [self.replay.stream("asker", prompt, answer) for _ in range(askers)]
        for reader in self.readers:
            reader.target_itl_s, reader.priority = of_readers_s, priority
        for stream in self.streams:
            stream.start()
        self.replay.run_for(SETTLING_S)
        self.since = len(self.replay.device.steps)
        for stream in self.streams:
            stream.gaps.clear()
            stream.firsts.clear()
        self.replay.run_for(RUN_S)

    @property
    def streams(self) -> list[Stream]:
        """Return all streams."""
        return [*self.readers, *self.askers]

    @property
    def gaps(self) -> list[float]:
        """Return the gaps of the streams with long answers."""
        return [gap for reader in self.readers for gap in reader.gaps]

    @property
    def prompts_per_s(self) -> float:
        """Return the prompt tokens a second of the streams with long prompts."""
        steps = self.replay.device.steps[self.since :]
        new = sum(row.num_new for _, step in steps for row in step.rows if is_prefill(row))
        return new / RUN_S


@pytest.mark.parametrize("target_s", [0.025, 0.05, 0.1])
@pytest.mark.parametrize(("readers", "askers"), [(4, 2), (32, 8), (96, 16)])
def test_a_target_that_can_be_kept_is_kept_at_the_99th_percentile(
    target_s: float, readers: int, askers: int
) -> None:
    load = Load(target_s, readers=readers, askers=askers)
    assert p99(load.gaps) <= target_s
    assert all(asker.firsts for asker in load.askers)
    stats = load.replay.core.components.scheduler.gap_targets.stats()
    assert (stats.is_missed, stats.is_too_short) == (False, False)


def test_control_without_a_target_gaps_are_longer() -> None:
    assert p99(Load(None).gaps) > 0.025


def test_a_longer_target_computes_prompts_faster() -> None:
    rates = [Load(target_s).prompts_per_s for target_s in (0.015, 0.03, 0.06)]
    assert rates == sorted(rates)
    assert rates[-1] > 1.3 * rates[0]


def test_contexts_of_unlike_lengths_keep_to_a_target() -> None:
    """The last tokens of a long prompt read many times as many keys as a mean prompt's."""
    load = Load(0.03, readers=16, askers=6, prompt=1_000)
    long = load.replay.stream("asker", 60_000, 4)
    long.start()
    load.replay.run_for(10.0)
    assert long.firsts
    assert p99(load.gaps) <= 0.03


@pytest.mark.parametrize("target_s", [0.0001, 0.003])
def test_a_target_that_cannot_be_kept_leaves_prompts_their_share(target_s: float) -> None:
    load = Load(target_s, readers=96, askers=16)
    steps = [step for _, step in load.replay.device.steps[load.since :]]
    mixed = [step for step in steps if any(map(is_prefill, step.rows))]
    seconds = load.replay.device.model.seconds
    decodes = [tuple(row for row in step.rows if not is_prefill(row)) for step in mixed]
    alone = sum(
        seconds(structs.replace(step, rows=rows)) for step, rows in zip(mixed, decodes, strict=True)
    )
    both = sum(map(seconds, mixed))
    assert LEAST_SHARE / 2 < 1 - alone / both < 2 * LEAST_SHARE
    assert any(asker.firsts for asker in load.askers)
    stats = load.replay.core.components.scheduler.gap_targets.stats()
    assert stats.is_missed


def test_prompts_alone_have_whole_steps_whatever_the_target() -> None:
    rates = [Load(one, readers=0, answer=1).prompts_per_s for one in (0.005, None)]
    assert rates[0] == pytest.approx(rates[1], rel=0.02)


def test_a_tenant_has_a_target_of_its_own() -> None:
    assert p99(Load(None, of_readers_s=0.02).gaps) <= 0.02


def test_requests_of_the_batch_class_have_no_target() -> None:
    assert p99(Load(0.02, answer=1).gaps) <= 0.02
    batch = Load(0.02, answer=1, of_readers_s=0.02, priority="batch")
    assert p99(batch.gaps) > 0.02
