"""A light tenant (visitor) beside a flood waits only for the rest of one small step.

The scheduling core is real; the device only waits. The visitor's wait is the number of other
tenants' tokens in the steps between its arrival and its first token. All tokens of the running step
count. `tests.doubles.modelled` has the device and the virtual clock.
"""

from __future__ import annotations

import pytest

from engine.scheduling.step_builder import StepLimits
from engine.step import is_prefill
from tests.doubles.modelled.device import StepModel
from tests.doubles.modelled.replay import Replay, Stream

WHOLE = 8192
SMALL = 512  # maximum number of other tenants' tokens in a step for which a visitor may wait
MAX_STEP_S = 0.06
PROMPT = 2000
ASKS = 12


class Flooded:
    """A flood of 64 streams, and a visitor that asks, reads, and asks again."""

    def __init__(
        self, max_step_s: float | None, floods: int = 1, model: StepModel | None = None
    ) -> None:
        limits = StepLimits(WHOLE, 256, max_step_s)
        self.replay = Replay(limits, model=model)
        crowd = [self.replay.stream(f"flood{n % floods}", 8000, 32) for n in range(64)]
        for stream in crowd:
            stream.start()
        self.replay.run_for(1.0)
        self.victim = self.replay.stream("victim", PROMPT, 8, pause_s=0.5)
        self.victim.start()
        # the visitor gets two answers before the measurement
        self.replay.run(lambda: len(self.victim.firsts) == 2)
        self.idle, self.since = self.replay.device.idle, self.replay.time.now
        self.replay.run(lambda: len(self.victim.firsts) == 2 + ASKS)

    def waits(self) -> list[int]:
        """Return the flood's tokens before each of the visitor's answers but the first two."""
        asked = zip(self.victim.asked_at, self.victim.firsts, strict=False)
        return [self._between(at, at + first - 2e-3) for at, first in list(asked)[2:]]

    def until_launched(self) -> list[float]:
        """Return the seconds from each of these requests to the launch of its step."""
        device = self.replay.device
        launched = [
            at
            for at, (_, step), owners in zip(
                device.launched_at, device.steps, device.owners, strict=True
            )
            if any(
                owner.flow == "victim" and row.num_new == PROMPT
                for row, owner in zip(step.rows, owners, strict=True)
            )
        ]
        pairs = zip(self.victim.asked_at, launched, strict=False)
        return [at - asked for asked, at in pairs][2:]

    def _between(self, asked: float, answered: float) -> int:
        device = self.replay.device
        return sum(
            row.num_new
            for (begun, step), owners in zip(device.steps, device.owners, strict=True)
            if begun + device.model.seconds(step) > asked and begun < answered - 1e-6
            for row, owner in zip(step.rows, owners, strict=True)
            if owner.flow != "victim" and is_prefill(row)
        )


@pytest.mark.parametrize("floods", [1, 3])
def test_a_visitor_waits_for_the_rest_of_one_small_step(floods: int) -> None:
    flooded = Flooded(MAX_STEP_S, floods)
    waits = sorted(flooded.waits())
    assert len(waits) == ASKS
    assert waits[ASKS // 2] <= SMALL
    # The visitor may arrive while the next step is being launched.
    assert waits[-1] <= 2 * SMALL
    seconds = flooded.replay.time.now - flooded.since
    assert flooded.replay.device.idle - flooded.idle < 0.005 * seconds


def test_a_visitors_step_is_launched_when_it_comes_and_known_when_it_ends() -> None:
    """This host is so slow that it launches a step only after the running step has ended."""
    slow = StepModel(eager_launch=0.025)
    flooded = Flooded(MAX_STEP_S, model=slow)
    assert len(flooded.until_launched()) >= ASKS
    assert max(flooded.until_launched()) <= 2 * slow.launch
    alone = slow.of_itself + slow.token * PROMPT + slow.pair * PROMPT * PROMPT / 2
    least = slow.of_itself + slow.token * SMALL + slow.pair * SMALL * 8000
    # time to read the keys of at most an eighth of the flood's rows
    others = 64 * 8000 * slow.decode_key / 8
    assert max(flooded.victim.firsts[2:]) < alone + least + others + 0.01


def test_control_without_the_setting_a_visitor_waits_for_two_large_steps() -> None:
    """Positive control: without the setting, this load does delay a visitor."""
    waits = Flooded(None).waits()
    assert min(waits) > WHOLE / 2
    assert sorted(waits)[ASKS // 2] > 1.5 * WHOLE


def test_a_flood_that_nobody_visits_has_large_steps() -> None:
    replay = Replay(StepLimits(WHOLE, 256, MAX_STEP_S))
    for _ in range(8):
        replay.stream("flood", 8000, 8).start()
    replay.run_for(2.0)
    sizes = [step.num_tokens for _, step in replay.device.steps]
    assert min(sizes) > 3 * SMALL


def finished(max_step_s: float | None) -> tuple[int, float]:
    """Replay 8 equal tenants with four streams each for two seconds. Count answers and steps."""
    replay = Replay(StepLimits(WHOLE, 256, max_step_s))
    streams: list[Stream] = []
    for number in range(8):
        shared = tuple(range(10 + 4096 * number, 10 + 4096 * (number + 1)))
        for _ in range(4):
            streams.append(replay.stream(f"tenant{number}", 4096 + 128, 16))
            streams[-1].shared = shared
            streams[-1].start()
    replay.run_for(2.0)
    return sum(one.finished for one in streams), len(replay.device.steps)


def test_equal_tenants_are_no_visitors_of_each_other() -> None:
    """If equal tenants counted as visitors, steps would be bounded, and so small and many."""
    (requests, steps), (usual, usual_steps) = finished(MAX_STEP_S), finished(None)
    assert requests >= usual
    assert steps <= usual_steps


def steps_before(max_step_s: float | None) -> list[int]:
    """Count the steps that begin between each request of a client and the step that serves it.

    The client asks all the time. All clients are in one flow, and steps without a bound are long.
    """
    model = StepModel(of_itself=0.015)
    replay = Replay(StepLimits(WHOLE, 256, max_step_s), model=model, noise=0.02)
    for _ in range(32):
        replay.stream("flow", 300, 2000).start()
    replay.run_for(1.0)
    asking = replay.stream("flow", 301, 2, pause_s=0.2)
    asking.start()
    replay.run(lambda: len(asking.firsts) == ASKS)
    device = replay.device
    begun = [at for at, _ in device.steps]
    its = [
        at
        for (at, step), owners in zip(device.steps, device.owners, strict=True)
        for row, owner in zip(step.rows, owners, strict=True)
        if owner.prompt_len == 301 and row.start == 0
    ]
    return [
        sum(asked < at < own for at in begun)
        for asked, own in zip(asking.asked_at, its, strict=True)
    ]


def test_who_is_always_there_is_in_the_next_step_too() -> None:
    before = sorted(steps_before(MAX_STEP_S))
    assert before[: ASKS * 3 // 4] == [0] * (ASKS * 3 // 4)
    assert before[-1] <= 1  # one step may come first, if the request arrived during a launch


def test_control_without_the_setting_it_waits_for_one_more() -> None:
    before = sorted(steps_before(None))
    assert before[ASKS // 4] >= 1
