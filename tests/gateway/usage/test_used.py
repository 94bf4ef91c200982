"""A request is charged for computed tokens, however the request ends."""

from __future__ import annotations

from engine.link.event_messages import Failed, Reused
from engine.link.stats.tier_stats import TierTokens
from gateway.generation.choice import ChoiceEnded, Delta
from gateway.requests.request_metrics import RequestMetrics
from gateway.telemetry.metrics import GatewayMetrics
from gateway.tenant_limits import TokenCounts
from tests.gateway.support.admitted import admitted
from tests.gateway.support.ended import end_choice, engine_end
from tests.gateway.support.manual_clock import ManualClock


def a_meter(*prompts: int, choices: int = 1, use_cache: bool = True) -> RequestMetrics:
    """Make the meter of a request with prompts of these lengths."""
    request = admitted(*prompts, choices=choices, use_cache=use_cache)
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


def test_choices_are_charged_for_what_each_has_computed_of_a_prompt_that_is_told_once() -> None:
    request_metrics = a_meter(100, 50, choices=2)
    request_metrics.see(first(0, cached=0))
    request_metrics.see(first(1, cached=96))
    # the second prompt's computation has not begun
    assert request_metrics.worked() == TokenCounts(104, 0, 2)
    request_metrics.see(first(2, cached=48))
    end_choice(request_metrics, 2, "stop", 7, prompt_tokens=50, reused=Reused(TierTokens(48)))
    request_metrics.see(first(3, cached=48))
    assert request_metrics.worked() == TokenCounts(108, 48, 10)
    told = request_metrics.usage()
    assert (told.prompt_tokens, told.cached_tokens) == (150, 48)


def test_choices_of_a_prompt_shorter_than_a_block_share_nothing() -> None:
    request_metrics = a_meter(15, choices=16)
    for index in range(16):
        request_metrics.end(index, engine_end(15, 0))
    assert request_metrics.worked() == TokenCounts(240, 0, 0)
    assert request_metrics.usage().prompt_tokens == 15


def test_choices_that_do_not_use_the_cache_compute_their_prompt_each() -> None:
    request_metrics = a_meter(100, choices=2, use_cache=False)
    for index in range(2):
        request_metrics.end(index, engine_end(100, 5))
    assert request_metrics.worked() == TokenCounts(200, 0, 10)


def test_time_saved_is_what_the_engine_reported() -> None:
    request_metrics = a_meter(100, choices=2)
    assert request_metrics.saved_ms() is None
    found = Reused(TierTokens(96), saved_seconds=3.0)
    request_metrics.see(Delta(0, "a", (1,), None, found))
    end_choice(request_metrics, 0, "stop", 1, prompt_tokens=100, reused=found)
    assert request_metrics.saved_ms() == 3000.0
    nothing = Reused(saved_seconds=0.0)
    end_choice(request_metrics, 1, "stop", 1, prompt_tokens=100, reused=nothing)
    assert request_metrics.saved_ms() == 0.0  # the prompt was computed after all


def test_time_saved_that_nobody_measured_is_not_0() -> None:
    request_metrics = a_meter(100)
    end_choice(request_metrics, 0, "stop", 1, prompt_tokens=100, reused=Reused(TierTokens(96)))
    assert request_metrics.saved_ms() is None


def test_what_a_client_was_not_told_any_more_is_charged_too() -> None:
    request_metrics = a_meter(100, 50)
    request_metrics.see(first(0, cached=32))
    request_metrics.end(0, engine_end(100, 9, Reused(TierTokens(32))))
    assert request_metrics.usage().completion_tokens == 1, "what was told"
    assert request_metrics.worked() == TokenCounts(68, 32, 9), "what was computed"
    request_metrics.see(ChoiceEnded(0, "stop", 1))
    assert request_metrics.usage().completion_tokens == 9, "an answer says what is charged"
    request_metrics.see(first(1, cached=0))
    assert request_metrics.worked() == TokenCounts(118, 32, 10)


def test_a_prompt_that_was_left_half_way_is_charged_as_far_as_it_was_computed() -> None:
    request_metrics = a_meter(100, 50, choices=2)
    request_metrics.end(0, engine_end(100, 0, Reused(TierTokens(16)), computed=48))
    # the second choice waited for the first to compute the prompt
    request_metrics.end(1, engine_end(100, 0, computed=0))
    request_metrics.end(2, engine_end(50, 0, Reused(TierTokens(32)), computed=0))
    assert request_metrics.worked() == TokenCounts(computed=48, cached=16)


def test_what_failed_is_charged_as_far_as_it_was_computed() -> None:
    request_metrics = a_meter(100)
    end = Failed(request_id="", code="x", message="", reused=Reused(), computed_tokens=100)
    request_metrics.end(0, end)
    assert request_metrics.worked() == TokenCounts(computed=100)


def test_an_end_that_says_nothing_takes_nothing_back() -> None:
    """Charge a request for the tokens that it received, if its end reports no counts.

    A broken or dead engine causes an end without counts.
    """
    request_metrics = a_meter(100)
    request_metrics.see(first(0, cached=32))
    request_metrics.see(Delta(0, "b", (2, 3), None))
    request_metrics.end(0, Failed(request_id="", code="x", message=""))
    assert request_metrics.worked() == TokenCounts(68, 32, 3)
