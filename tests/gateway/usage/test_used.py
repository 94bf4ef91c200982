"""What a request is charged: tokens that were computed, however it ended."""

from __future__ import annotations

from engine.link.messages import Reused
from engine.link.stats_messages import TierTokens
from gateway.generation.choice import ChoiceEnded, Delta
from gateway.limits.limits import TokenCounts
from gateway.telemetry.metrics import GatewayMetrics
from gateway.usage.request_metrics import RequestMetrics
from tests.gateway.support.admitted import admitted
from tests.gateway.support.manual_clock import ManualClock


def a_meter(*prompts: int, choices: int = 1) -> RequestMetrics:
    """Of a request with prompts of so many tokens."""
    request = admitted(*prompts, choices=choices)
    return RequestMetrics(GatewayMetrics(), "/v1/completions", request, 0.0, ManualClock())


def first(index: int, cached: int) -> Delta:
    return Delta(index, "a", (1,), None, Reused(TierTokens(cached)))


def test_a_request_that_never_began_computed_nothing() -> None:
    assert a_meter(100).worked() == TokenCounts()


def test_a_request_that_broke_off_is_charged_from_its_first_token_on() -> None:
    request_metrics = a_meter(100)
    request_metrics.see(first(0, cached=32))
    request_metrics.see(Delta(0, "b", (2, 3), None))
    assert request_metrics.worked() == TokenCounts(computed=68, cached=32, generated=3)


def test_choices_compute_their_prompt_once_and_prompts_count_each() -> None:
    request_metrics = a_meter(100, 50, choices=2)
    request_metrics.see(first(0, cached=0))
    request_metrics.see(first(1, cached=96))
    assert request_metrics.worked() == TokenCounts(100, 0, 2)  # the second prompt has not begun
    request_metrics.see(first(2, cached=48))
    request_metrics.see(ChoiceEnded(2, "stop", 7, Reused(TierTokens(48))))
    assert request_metrics.worked() == TokenCounts(102, 48, 9)


def test_time_saved_is_what_the_engine_reported() -> None:
    request_metrics = a_meter(100, choices=2)
    assert request_metrics.saved_ms() is None
    found = Reused(TierTokens(96), saved_seconds=3.0)
    request_metrics.see(Delta(0, "a", (1,), None, found))
    request_metrics.see(ChoiceEnded(0, "stop", 1, found))
    assert request_metrics.saved_ms() == 3000.0
    request_metrics.see(ChoiceEnded(1, "stop", 1, Reused(saved_seconds=0.0)))
    assert request_metrics.saved_ms() == 0.0  # the prompt was computed after all


def test_time_saved_that_nobody_measured_is_not_0() -> None:
    request_metrics = a_meter(100)
    request_metrics.see(ChoiceEnded(0, "stop", 1, Reused(TierTokens(96))))
    assert request_metrics.saved_ms() is None
