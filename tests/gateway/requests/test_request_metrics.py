"""A request's metrics and trace, to the last label, however it ends."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import AbstractContextManager, nullcontext, suppress

import msgspec
import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from engine.errors import EngineError, EngineUnavailable, NumericFailure
from engine.link.event_messages import Reused, Timing
from engine.link.stats.tier_stats import TierTokens
from gateway.diagnosis.comparison import Comparison
from gateway.diagnosis.seen import SeenPrompt
from gateway.dialects.openai_shape import cached_by_tier
from gateway.errors import TooManyRequests
from gateway.generation.choice import ChoiceEnded, Delta, EndReason
from gateway.requests.request_metrics import RequestMetrics
from gateway.requests.request_usage import Usage
from gateway.requests.tracing import RequestTracing, TracedUse
from gateway.telemetry.metrics import GatewayMetrics
from gateway.tenant_limits import TokenCounts
from tests.gateway.support.admitted import admitted
from tests.gateway.support.ended import end_choice, engine_end
from tests.gateway.support.manual_clock import ManualClock

ROUTE = "/v1/completions"
OTHER = "/v1/chat/completions"
TIMING = Timing(queue=0.001, match=0.002, load=0.004, prefill=0.008)
GAPS_AT_ONCE = 64
RESTART = Delta(0, "", (), None, is_restart=True)


class RecordingTrace(RequestTracing):
    """A trace that records its calls."""

    def __init__(self) -> None:
        self.firsts: list[Timing | None] = []
        self.uses: list[tuple[str, int, int, int]] = []

    def running(self) -> AbstractContextManager[None]:
        return nullcontext()

    def admitted(self) -> None:
        raise AssertionError("the meter comes after the admission")

    def first_token(self, timing: Timing | None) -> None:
        self.firsts.append(timing)

    def used(self, outcome: str, tokens: TracedUse) -> None:
        self.uses.append((outcome, tokens.prompt, tokens.cached, tokens.generated))


class Bench:
    """One request with its meter, on a clock that tests set."""

    def __init__(self, *prompts: int, choices: int = 1) -> None:
        self._prompt_tokens = prompts[0]
        self.clock = ManualClock(500.0)
        self.metrics = GatewayMetrics()
        self.trace = RecordingTrace()
        self.request_metrics = RequestMetrics(
            self.metrics, ROUTE, admitted(*prompts, choices=choices), 499.0, self.clock, self.trace
        )

    def token(
        self, index: int = 0, after: float = 0.0, count: int = 1, **first: float | int
    ) -> None:
        """Report tokens of a choice, `after` seconds later."""
        self.clock.advance(after)
        cached, reused, timing = first.get("cached"), None, None
        if cached is not None:
            reused = Reused(TierTokens(device=int(cached)))
            timing = replace(TIMING, queue=first.get("queue", TIMING.queue))
        self.request_metrics.see(Delta(index, "x" * count, (7,) * count, None, reused, timing))

    def end(self, index: int, reason: EndReason, generated: int, cached: int = 0) -> None:
        """End a choice of the first prompt."""
        end_choice(
            self.request_metrics,
            index,
            reason,
            generated,
            prompt_tokens=self._prompt_tokens,
            reused=Reused(TierTokens(cached)),
        )

    def seen(self) -> dict[str, float]:
        """Return every sample that is not 0, by name and labels, without buckets and times."""
        return {
            " ".join(
                [
                    sample.name.removeprefix("ratoon_"),
                    *(sample.labels[name] for name in sorted(sample.labels)),
                ]
            ): sample.value
            for family in text_string_to_metric_families(self.metrics.render(None).decode())
            for sample in family.samples
            if sample.value and not sample.name.endswith(("_bucket", "_created"))
        }


def ending(request_metrics: RequestMetrics, error: BaseException) -> None:
    """Raise `error` within the measured part of a request."""
    with pytest.raises(type(error)), request_metrics.measured():
        raise error


def test_usage_names_the_tier_of_a_state_that_came_alone() -> None:
    for state, shown in (("host", {"state": "host"}), (None, {})):
        bench = Bench(100)
        reused = Reused(TierTokens(device=64), state_tier=state)  # type: ignore[arg-type]
        bench.request_metrics.see(Delta(0, "x", (7,), None, reused, TIMING))
        tiers = cached_by_tier(bench.request_metrics.usage())
        assert msgspec.to_builtins(tiers) == {"device": 64, "host": 0, "disk": 0, **shown}


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_a_request_that_is_answered(reason: EndReason) -> None:
    bench = Bench(100)
    with bench.request_metrics.measured():
        assert bench.seen() == {"requests_running": 1.0}
        bench.token(after=0.25, queue=0.125, cached=64)
        bench.token(after=0.5)
        bench.token(after=1.0, count=2)
        bench.clock.advance(2.0)
        bench.end(0, reason, 5, cached=64)
    assert bench.seen() == {
        f"requests_total {reason} {ROUTE}": 1,
        "prompt_tokens_total": 100,
        "cached_tokens_total": 64,
        "generated_tokens_total": 5,
        "queue_seconds_count": 1,
        "queue_seconds_sum": 0.125,
        "time_to_first_token_seconds_count": 1,
        "time_to_first_token_seconds_sum": 1.25,
        "inter_token_latency_seconds_count": 3,
        "inter_token_latency_seconds_sum": 1.5,
        f"request_seconds_count {ROUTE}": 1,
        f"request_seconds_sum {ROUTE}": 4.75,
    }
    assert bench.trace.firsts == [replace(TIMING, queue=0.125)]
    assert bench.trace.uses == [(reason, 100, 64, 5)]


BROKEN: list[tuple[BaseException, str]] = [
    (EngineUnavailable("gone"), "engine_unavailable"),
    (NumericFailure("nan"), "numeric_failure"),
    (asyncio.CancelledError(), "cancelled"),
    (GeneratorExit(), "cancelled"),
    (ValueError("a defect"), "internal_error"),
    (TooManyRequests("behind the start"), "internal_error"),
]


@pytest.mark.parametrize(
    ("error", "outcome"),
    BROKEN,
    ids=lambda case: case if isinstance(case, str) else type(case).__name__,
)
def test_a_request_that_broke_off_counts_as_far_as_it_came(
    error: BaseException, outcome: str
) -> None:
    if isinstance(error, EngineError):
        assert error.code == outcome
    bench = Bench(100)
    with suppress(type(error)), bench.request_metrics.measured():
        bench.token(after=0.25, queue=0.125, cached=32)
        bench.token(after=0.5)
        raise error
    assert bench.seen() == {
        f"requests_total {outcome} {ROUTE}": 1,
        "prompt_tokens_total": 100,
        "cached_tokens_total": 32,
        "generated_tokens_total": 2,
        "queue_seconds_count": 1,
        "queue_seconds_sum": 0.125,
        "time_to_first_token_seconds_count": 1,
        "time_to_first_token_seconds_sum": 1.25,
        "inter_token_latency_seconds_count": 1,
        "inter_token_latency_seconds_sum": 0.5,
        f"request_seconds_count {ROUTE}": 1,
        f"request_seconds_sum {ROUTE}": 1.75,
    }
    assert bench.trace.uses == [(outcome, 100, 32, 2)]


@pytest.mark.parametrize(
    ("error", "outcome"),
    BROKEN,
    ids=lambda case: case if isinstance(case, str) else type(case).__name__,
)
def test_a_request_that_ended_before_its_first_token(error: BaseException, outcome: str) -> None:
    bench = Bench(100)
    ending(bench.request_metrics, error)
    assert bench.seen() == {
        f"requests_total {outcome} {ROUTE}": 1,
        "prompt_tokens_total": 100,
        f"request_seconds_count {ROUTE}": 1,
        f"request_seconds_sum {ROUTE}": 1.0,
    }
    assert bench.trace.firsts == []
    assert bench.trace.uses == [(outcome, 100, 0, 0)]
    assert bench.request_metrics.worked() == TokenCounts(), "no end says that anything was computed"


def test_an_error_overrules_the_choices_that_had_ended() -> None:
    bench = Bench(100, choices=2)
    with suppress(NumericFailure), bench.request_metrics.measured():
        bench.token(0, cached=0)
        bench.end(0, "stop", 1)
        raise NumericFailure("nan")
    assert bench.seen()[f"requests_total numeric_failure {ROUTE}"] == 1
    assert bench.trace.uses == [("numeric_failure", 100, 0, 1)]


def test_the_choice_that_ends_last_names_the_outcome() -> None:
    bench = Bench(10, choices=2)
    with bench.request_metrics.measured():
        bench.end(1, "length", 3)
        bench.end(0, "stop", 4)
    assert bench.trace.uses == [("stop", 10, 0, 7)]
    assert f"requests_total length {ROUTE}" not in bench.seen()


def test_choices_have_gaps_of_their_own_and_one_first_token() -> None:
    bench = Bench(10, choices=2)
    with bench.request_metrics.measured():
        bench.token(0, after=1.0, queue=0.25, cached=8)
        bench.token(1, after=2.0, queue=0.5, cached=8)
        bench.token(0, after=4.0)  # 6 s after its first token
        bench.token(1, after=8.0)  # 12 s after its first token
    seen = bench.seen()
    assert seen["time_to_first_token_seconds_count"] == 1
    assert seen["time_to_first_token_seconds_sum"] == 2.0
    assert seen["queue_seconds_count"] == 2
    assert seen["queue_seconds_sum"] == 0.75
    assert seen["inter_token_latency_seconds_count"] == 2
    assert seen["inter_token_latency_seconds_sum"] == 18.0
    assert seen["prompt_tokens_total"] == 10, "once, however many choices"
    assert seen["cached_tokens_total"] == 8
    assert bench.trace.firsts == [replace(TIMING, queue=0.25)]


def test_each_of_several_tokens_from_one_step_has_an_equal_part_of_the_gap() -> None:
    bench, bucket = Bench(10), "ratoon_inter_token_latency_seconds_bucket"
    with bench.request_metrics.measured():
        bench.token(cached=0)
        bench.token(after=0.4, count=4)
    seen = bench.seen()
    assert seen["inter_token_latency_seconds_count"] == 4
    assert seen["inter_token_latency_seconds_sum"] == pytest.approx(0.4)
    text = bench.metrics.render(None).decode()
    bounds = {
        float(sample.labels["le"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == bucket
    }
    assert all(count == (4 if bound >= 0.1 else 0) for bound, count in bounds.items()), (
        "none of 0.4"
    )


def test_what_a_choice_had_used_before_it_began_anew_is_nobodys() -> None:
    bench = Bench(100)
    with bench.request_metrics.measured():
        bench.token(after=0.25, cached=16, count=3)
        bench.request_metrics.see(RESTART)
        assert bench.request_metrics.usage().completion_tokens == 0
        bench.token(after=0.25, cached=64, count=2)
    used = bench.request_metrics.usage()
    assert (used.completion_tokens, used.cached_tokens) == (2, 64)
    assert bench.request_metrics.worked().generated == 2
    assert bench.seen()["time_to_first_token_seconds_count"] == 1


def test_the_first_token_after_a_restart_ends_no_gap_between_tokens() -> None:
    bench = Bench(100)
    with bench.request_metrics.measured():
        bench.token(after=0.25, cached=0)
        bench.token(after=0.5)
        bench.request_metrics.see(RESTART)
        bench.token(after=8.0, cached=0)
        bench.token(after=1.0)
    seen = bench.seen()
    assert seen["inter_token_latency_seconds_count"] == 2
    assert seen["inter_token_latency_seconds_sum"] == 1.5
    assert seen["time_to_first_token_seconds_count"] == 1


def test_what_a_miss_costs_is_told_by_the_attempt_that_answers() -> None:
    old, new = (SeenPrompt(name, bytes(400), (), False, b"", None, b"") for name in ("old", "new"))
    asked = dataclasses.replace(admitted(100), comparison=Comparison(new, 10, seen=old, common=100))

    def lost_ms(*attempts: float) -> float | None:
        metrics = RequestMetrics(GatewayMetrics(), ROUTE, asked, 0.0, ManualClock(1.0))
        for number, seconds in enumerate(attempts):
            if number:
                metrics.see(RESTART)
            timing = replace(TIMING, prefill=seconds)
            metrics.see(Delta(0, "x", (7,), None, Reused(), timing))
        missed = metrics.missed()
        return None if missed is None else missed.lost_ms

    assert lost_ms(0.1, 0.5) == lost_ms(0.5) != lost_ms(0.1)


def test_what_another_choice_of_the_prompt_has_computed_is_not_cached_after_a_restart() -> None:
    bench = Bench(100, choices=2)
    with bench.request_metrics.measured():
        bench.token(0, cached=0)
        bench.token(1, cached=96)
        bench.end(0, "stop", 1)
        bench.request_metrics.see(Delta(1, "", (), None, is_restart=True))
        assert bench.request_metrics.worked().computed == 100, "of the choice that has ended"
        bench.token(1, cached=96)
    assert bench.request_metrics.usage().cached_tokens == 0
    assert bench.request_metrics.worked().computed == 104


def test_text_that_was_held_back_is_no_token() -> None:
    bench = Bench(10)
    with bench.request_metrics.measured():
        bench.token(after=1.0, cached=0)
        bench.clock.advance(5.0)
        bench.request_metrics.see(Delta(0, "held", (), None))
        bench.token(after=1.0)
    seen = bench.seen()
    assert seen["generated_tokens_total"] == 2
    assert seen["inter_token_latency_seconds_count"] == 1
    assert seen["inter_token_latency_seconds_sum"] == 6.0


@pytest.mark.parametrize("gaps", [GAPS_AT_ONCE - 1, GAPS_AT_ONCE, GAPS_AT_ONCE + 1])
def test_gaps_are_handed_on_together_and_none_twice(gaps: int) -> None:
    bench = Bench(10)
    name = "inter_token_latency_seconds_count"
    with bench.request_metrics.measured():
        bench.token(cached=0)
        for _ in range(gaps):
            bench.token(after=0.5)
        assert bench.seen().get(name, 0) == gaps // GAPS_AT_ONCE * GAPS_AT_ONCE
    assert bench.seen()[name] == gaps
    assert bench.seen()["inter_token_latency_seconds_sum"] == gaps * 0.5


def test_requests_that_run_are_told_by_route_and_number() -> None:
    bench = Bench(10)
    other = RequestMetrics(bench.metrics, OTHER, admitted(5), 500.0, bench.clock)
    with bench.request_metrics.measured():
        with other.measured():
            assert bench.seen() == {"requests_running": 2.0}
            end_choice(other, 0, "length", 3, prompt_tokens=5)
        assert bench.seen()["requests_running"] == 1.0
        bench.end(0, "stop", 4)
    seen = bench.seen()
    assert "requests_running" not in seen
    assert seen[f"requests_total length {OTHER}"] == 1
    assert seen[f"requests_total stop {ROUTE}"] == 1
    assert seen[f"request_seconds_count {OTHER}"] == 1
    assert seen["prompt_tokens_total"] == 15


def test_usage_adds_up_prompts_and_tiers() -> None:
    bench = Bench(100, 50, choices=2)
    request_metrics = bench.request_metrics
    assert request_metrics.usage() == Usage(150, 0, 0, TierTokens())
    request_metrics.see(Delta(0, "a", (1,), None, Reused(TierTokens(16, 16, 16))))
    request_metrics.see(Delta(1, "a", (1, 2), None, Reused(TierTokens(96, 0, 0))))
    request_metrics.see(Delta(2, "a", (1,), None, Reused(TierTokens(0, 0, 32))))
    request_metrics.see(Delta(3, "a", (1,), None, Reused(TierTokens(16))))
    assert request_metrics.usage() == Usage(150, 48 + 16, 5, TierTokens(32, 16, 16))
    request_metrics.see(Delta(2, "", (), None, Reused(TierTokens(3), fetched=12)))
    assert request_metrics.usage().tiers == TierTokens(16 + 15, 16, 16), "put on the device"
    assert request_metrics.usage().cached_tokens == 48 + 15
    bench.end(1, "stop", 7, cached=96)
    assert request_metrics.usage().completion_tokens == 1 + 7 + 1 + 1


def test_drafts_are_those_of_all_ends_and_a_restart_forgets_its_own() -> None:
    bench = Bench(10, choices=2)
    for index, drafts in ((0, {"tree": (4, 3)}), (1, {"tree": (2, 0), "own": (5, 5)})):
        bench.token(index)
        bench.request_metrics.end(index, replace(engine_end(10, 1), drafts=drafts))
    assert bench.request_metrics.usage().drafts == {"tree": (6, 3), "own": (5, 5)}
    bench.request_metrics.see(RESTART)
    assert bench.request_metrics.usage().drafts == {"tree": (2, 0), "own": (5, 5)}


@pytest.mark.parametrize(
    ("drafted", "accepted", "rejected"), [(0, 0, 0), (6, 2, 4), (6, 6, 0), (50, 2, 6), (50, 9, 0)]
)
def test_rejected_tokens_of_a_prediction_are_charged(
    drafted: int, accepted: int, rejected: int
) -> None:
    """Charge a prediction's rejected tokens, but at most its eight tokens."""
    predicting = admitted(10)
    generate = replace(predicting.generates[0], prediction=bytes(4 * 8))
    request_metrics = RequestMetrics(
        GatewayMetrics(),
        ROUTE,
        dataclasses.replace(predicting, generates=(generate,)),
        0.0,
        ManualClock(1.0),
    )
    end = replace(engine_end(10, 5), drafts={"prediction": (drafted, accepted), "tree": (9, 0)})
    request_metrics.end(0, end)
    request_metrics.see(ChoiceEnded(0, "stop", 5))
    usage = request_metrics.usage()
    assert usage.rejected_prediction_tokens == rejected
    assert usage.completion_tokens == request_metrics.worked().generated == 5 + rejected
