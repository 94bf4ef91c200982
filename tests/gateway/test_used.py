"""What a request is charged: tokens that were computed, however it ended."""

from __future__ import annotations

from engine.messages import WrittenAndRead
from gateway.choice import Delta, Ended
from gateway.limits.prices import Tokens
from gateway.meter import Meter, Took
from gateway.metrics import GatewayMetrics
from tests.gateway.admitted import admitted
from tests.gateway.manual_clock import ManualClock


def a_meter(*prompts: int, choices: int = 1) -> Meter:
    """Of a request with prompts of so many tokens."""
    request = admitted(*prompts, choices=choices)
    return Meter(GatewayMetrics(), "/v1/completions", request, 0.0, ManualClock())


def first(index: int, cached: int) -> Delta:
    return Delta(index, "a", (1,), None, 0.0, cached)


def test_a_request_that_never_began_computed_nothing() -> None:
    assert a_meter(100).worked() == Tokens()


def test_a_request_that_broke_off_is_charged_from_its_first_token_on() -> None:
    meter = a_meter(100)
    meter.see(first(0, cached=32))
    meter.see(Delta(0, "b", (2, 3), None, None))
    assert meter.worked() == Tokens(computed=68, cached=32, generated=3)


def test_choices_compute_their_prompt_once_and_prompts_count_each() -> None:
    meter = a_meter(100, 50, choices=2)
    meter.see(first(0, cached=0))
    meter.see(first(1, cached=96))
    assert meter.worked() == Tokens(100, 0, 2)  # the second prompt has not begun
    meter.see(first(2, cached=48))
    meter.see(Ended(2, "stop", cached_tokens=48, completion_tokens=7))
    assert meter.worked() == Tokens(102, 48, 9)


def test_seconds_are_those_the_engine_reported() -> None:
    meter = a_meter(100, choices=2)
    assert meter.took() == Took(engine=None, saved=None)
    meter.see(Delta(0, "a", (1,), None, 0.0, cached_tokens=96, saved_seconds=3.0))
    meter.see(Ended(0, "stop", 96, 1, saved_seconds=3.0, engine_seconds=0.5))
    assert meter.took() == Took(engine=0.5, saved=3.0)
    meter.see(Ended(1, "stop", 0, 1, saved_seconds=0.0, engine_seconds=2.0))
    assert meter.took() == Took(engine=2.5, saved=0.0)  # the prompt was computed after all


def test_a_choice_ended_by_the_gateway_has_no_seconds() -> None:
    meter = a_meter(100)
    meter.see(Ended(0, "stop", 96, 1))
    assert meter.took() == Took(engine=None, saved=None)


def test_what_was_written_and_read_is_what_the_engine_told_of_each_choice() -> None:
    meter = a_meter(100, choices=3)
    meter.see(first(0, cached=0))
    meter.see(Ended(0, "stop", 0, 1))  # ended by the gateway: the engine tells it later
    assert meter.written_and_read() == []
    told = [WrittenAndRead(96), WrittenAndRead(0, {"me": 96})]
    for index, one in enumerate(told, start=1):
        meter.see(Ended(index, "stop", 0, 1, cache=one))
    assert meter.written_and_read() == told
