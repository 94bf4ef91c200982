"""The phases of a request's time add up, and are sent once, with the first tokens."""

from __future__ import annotations

import pytest

from engine.link.event_messages import Tokens
from tests.engine.rigs.rig import Clock, Rig, generate

PROMPT = list(range(1, 13))


class TickingClock(Clock):
    """A clock that advances each time it is read."""

    tick = 1 / 1024

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


def tokens_of(rig: Rig, request_id: str) -> list[Tokens]:
    return [event for event in rig.link.events(request_id) if isinstance(event, Tokens)]


def test_the_phases_add_up_to_the_time_before_the_first_token() -> None:
    clock = TickingClock()
    rig = Rig(clock=clock)
    rig.submit(generate("r", PROMPT))
    rig.step()
    (first,) = tokens_of(rig, "r")
    (sequence,) = rig.scheduler.running
    assert first.timing is not None
    assert first.timing.queue > 0
    assert first.timing.match == clock.tick
    assert first.timing.load == 0
    settled = sequence.arrived + sum(
        (first.timing.queue, first.timing.match, first.timing.load, first.timing.prefill)
    )
    # After settling, the rig advances the clock by a millisecond, which is not part of any phase.
    assert settled == pytest.approx(clock.now - 0.001)
    assert first.timing.at == pytest.approx(settled), "by the engine's own clock"


def test_only_the_first_tokens_tell_the_timing() -> None:
    rig = Rig()
    rig.submit(generate("r", PROMPT))
    rig.run()
    assert [event.timing is None for event in tokens_of(rig, "r")] == [False, True, True, True]


def test_waiting_for_a_place_is_queueing() -> None:
    rig = Rig(max_running=1)
    rig.submit(generate("first", PROMPT, max_tokens=6))
    rig.submit(generate("second", PROMPT[::-1]))
    rig.run()
    waited = [tokens_of(rig, name)[0].timing for name in ("first", "second")]
    assert waited[0] is not None
    assert waited[1] is not None
    assert waited[0].queue == 0
    assert waited[1].queue >= 0.005


def test_load_time_counts_as_neither_queue_nor_prefill() -> None:
    rig = Rig(max_batch_tokens=8)
    rig.submit(generate("r", PROMPT))
    rig.step(1)
    (sequence,) = rig.scheduler.running
    sequence.load_seconds = 0.0005
    assert sequence.admitted is not None
    sequence.admitted += 0.0005  # moves the time at which all blocks had arrived
    rig.run()
    timing = tokens_of(rig, "r")[0].timing
    assert timing is not None
    assert (timing.queue, timing.load) == (0, 0.0005)
    assert timing.prefill == pytest.approx(0.001 - 0.0005)
