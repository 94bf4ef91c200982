"""The token use of one request, for the caller's usage and for `/metrics`."""

import asyncio
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import zip_longest

from engine.errors import EngineError
from engine.link.event_messages import DraftCounts, Failed, Finished, Reused
from engine.link.stats.tier_stats import TierTokens
from gateway.diagnosis.cache_miss import CacheMiss, cache_miss
from gateway.generation.choice import Delta, Event
from gateway.http.request_head import RequestUse
from gateway.prompts.generation_request import TOKEN_BYTES, AdmittedRequest
from gateway.requests.request_usage import PREDICTION, Usage
from gateway.requests.tracing import UNTRACED, RequestTracing, TracedUse
from gateway.telemetry.metrics import GatewayMetrics
from gateway.tenant_limits import TokenCounts

_CANCELLED = "cancelled"
# number of gaps that are reported together, since a single report costs as much as sending a token
_GAPS_AT_ONCE = 64


class RequestMetrics:
    """The metrics of one request, from its events and the ends of its choices in the engine.

    The request is charged for the tokens in the engine's messages that end choices. These may be
    more tokens than the client was sent. If an engine has died, it has sent no such message, and
    the tokens that have come are charged.
    """

    def __init__(
        self,
        metrics: GatewayMetrics,
        route: str,
        admitted: AdmittedRequest,
        arrived: float,
        clock: Callable[[], float],
        trace: RequestTracing = UNTRACED,
    ) -> None:
        self._metrics = metrics
        self._route = route
        self._admitted = admitted
        self._arrived = arrived
        self._clock = clock
        self._trace = trace
        self._last_token_at: dict[int, float] = {}
        self._told: dict[int, int] = {}
        self._reused: dict[int, Reused] = {}
        self._ends: dict[int, Finished | Failed] = {}
        self._gaps = array("d")
        self._reasoning_tokens = 0
        # seconds from the request's arrival to its first token
        self._first_token_s: float | None = None
        # seconds of prefill of the first choice that had a token
        self._prefill_s: float | None = None
        self._outcome = "internal_error"

    def see(self, event: Event) -> None:
        """Count one event of the answer."""
        if isinstance(event, Delta):
            if event.is_restart:
                self._restart(event.index)
            if event.token_ids:
                index = event.index
                self._told[index] = self._told.get(index, 0) + len(event.token_ids)
                self._time(event)
            if event.reused is not None:
                self._reuse(event.index, event.reused)
            return
        self._told[event.index] = self._generated(event.index)
        self._reasoning_tokens += event.reasoning_tokens
        self._outcome = event.reason

    def end(self, index: int, end: Finished | Failed) -> None:
        """Record that the engine has ended a choice, and the tokens that it has computed."""
        self._ends[index] = end
        if end.reused is not None and end.computed_tokens:
            self._reuse(index, end.reused)

    def usage(self) -> Usage:
        """Return the usage so far. A prompt that several choices share counts once.

        When all choices have ended, the request is charged this usage.
        """
        reused = self._reused_by_prompt()
        cached = sum(one.tokens for one in reused)
        rejected = self._rejected()
        return Usage(
            prompt_tokens=self._admitted.prompt_tokens,
            cached_tokens=cached,
            completion_tokens=sum(self._told.values()) + rejected,
            tiers=sum((one.by_tier for one in reused), TierTokens()),
            state_tier=next((one.state_tier for one in reused if one.state_tier), None),
            reasoning_tokens=self._reasoning_tokens,
            cache_miss=self._cache_miss(cached) if self._admitted.explains else None,
            written=tuple(map(sum, zip_longest(*(one.written for one in reused), fillvalue=0))),
            retained_s=tuple(mark.seconds for mark in self._admitted.generates[0].marks),
            drafts=self._drafts(),
            rejected_prediction_tokens=rejected,
            modules=self._admitted.modules,
        )

    def worked(self) -> TokenCounts:
        """Count the tokens that the engine is known to have worked on, for usage and limits.

        Every choice counts the tokens that it computed. Even if choices share a prompt, each choice
        computes the part that it does not find in the cache.
        """
        return TokenCounts(
            computed=sum(map(self._computed, self._reused)),
            cached=sum(one.tokens for one in self._reused_by_prompt()),
            generated=sum(map(self._generated, self._told.keys() | self._ends.keys()))
            + self._rejected(),
        )

    def missed(self) -> CacheMiss | None:
        """Return why the prompt missed the cache, or None.

        The result is None until the answer has begun, and if the prompt was not compared with the
        tenant's earlier prompts.
        """
        reused = self._reused_by_prompt()
        return self._cache_miss(sum(one.tokens for one in reused)) if reused else None

    def saved_ms(self) -> float | None:
        """Return the engine time that the cache saved, in ms; None if it was not measured."""
        saved = [one.saved_seconds for one in self._reused_by_prompt()]
        known = [seconds for seconds in saved if seconds is not None]
        return sum(known) * 1000 if known else None

    def use(self) -> RequestUse:
        """Return the request's outcome and token counts so far, for the access log."""
        used = self.worked()
        return RequestUse(
            self._outcome,
            self._admitted.prompt_tokens,
            used.cached,
            used.generated,
            self._first_token_s,
        )

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Report the request's start and, however it ends, its end."""
        self._metrics.started(self._route)
        try:
            yield
        except EngineError as error:
            self._outcome = error.code
            raise
        except (asyncio.CancelledError, GeneratorExit):
            self._outcome = _CANCELLED
            raise
        finally:
            self._report()

    def _generated(self, index: int) -> int:
        """Count a choice's generated tokens, including tokens after the last event sent."""
        end, told = self._ends.get(index), self._told.get(index, 0)
        return told if end is None else max(told, end.completion_tokens)

    def _drafts(self) -> DraftCounts:
        total: DraftCounts = {}
        for end in self._ends.values():
            for source, (drafted, accepted) in end.drafts.items():
                before = total.get(source, (0, 0))
                total[source] = (before[0] + drafted, before[1] + accepted)
        return total

    def _rejected(self) -> int:
        """Count the tokens of predictions that were verified and rejected.

        A prediction may be tried at several places of a choice. The choice counts at most the
        tokens of its prediction that are not in the answer.
        """
        rejected = 0
        for index, end in self._ends.items():
            drafted, accepted = end.drafts.get(PREDICTION, (0, 0))
            predicted = len(self._admitted.generates[index].prediction) // TOKEN_BYTES
            rejected += max(0, min(drafted, predicted) - accepted)
        return rejected

    def _computed(self, index: int) -> int:
        end = self._ends.get(index)
        if end is not None and end.computed_tokens:
            return end.computed_tokens
        prompt_tokens = self._admitted.generates[index].prompt_tokens
        return prompt_tokens - self._reused[index].tokens

    def _restart(self, index: int) -> None:
        self._told.pop(index, None)
        self._ends.pop(index, None)
        self._last_token_at.pop(index, None)  # the next token does not end a gap between tokens
        self._reused.pop(index, None)
        self._prefill_s = None

    def _reuse(self, index: int, reused: Reused) -> None:
        self._reused[index] = min(reused, self._reused.get(index, reused), key=_num_tokens)

    def _reused_by_prompt(self) -> list[Reused]:
        """Choose, for each prompt, the reused tokens of the choice that computed most of it.

        Tokens that one choice computed do not count as cached for the prompt's other choices.
        """
        found: dict[int, Reused] = {}
        for index in sorted(self._reused, key=self._computed):
            found[index // self._admitted.sharing] = self._reused[index]
        return [*found.values()]

    def _cache_miss(self, cached: int) -> CacheMiss | None:
        compared = self._admitted.comparison
        if compared is None:
            return None
        computed = self._admitted.prompt_tokens - cached
        rate = None if self._prefill_s is None else self._prefill_s / max(1, computed)
        matched = sum(max(one.matched, one.tokens) for one in self._reused_by_prompt())
        return cache_miss(compared, cached, rate, matched)

    def _report(self) -> None:
        usage, used = self.usage(), self.use()
        self._hand_on_gaps()
        traced = TracedUse(
            used.prompt_tokens,
            used.cached_tokens,
            sum(usage.written),
            used.generated_tokens,
            usage.reasoning_tokens,
        )
        self._trace.used(used.outcome, traced)
        self._metrics.ended(
            self._route,
            used.outcome,
            prompt_tokens=used.prompt_tokens,
            cached_tokens=used.cached_tokens,
            generated_tokens=used.generated_tokens,
            seconds=self._clock() - self._arrived,
        )

    def _time(self, event: Delta) -> None:
        index, now = event.index, self._clock()
        if event.timing is not None:
            self._metrics.queued(event.timing.queue)
            if self._prefill_s is None:
                self._prefill_s = event.timing.prefill
        if self._first_token_s is None:
            self._first_token_s = now - self._arrived
            self._metrics.first_token(self._first_token_s)
            self._trace.first_token(event.timing)
        before = self._last_token_at.get(index)
        if before is not None:
            count = len(event.token_ids)  # tokens of one step, which share the step's time equally
            self._gaps.extend([(now - before) / count] * count)
            if len(self._gaps) >= _GAPS_AT_ONCE:
                self._hand_on_gaps()
        self._last_token_at[index] = now

    def _hand_on_gaps(self) -> None:
        self._metrics.gaps(self._gaps)
        del self._gaps[:]


def _num_tokens(reused: Reused) -> int:
    return reused.tokens
