"""What one request used: its usage for the caller, its numbers for `/metrics`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest

from engine.errors import EngineError
from engine.link.messages import Reused
from engine.link.stats_messages import TierTokens
from gateway.diagnosis.cache_miss import CacheMiss, cache_miss
from gateway.generation.choice import Delta, Event
from gateway.http.request_head import RequestUse
from gateway.limits.limits import TokenCounts
from gateway.prompts.generation_request import AdmittedRequest
from gateway.telemetry.metrics import GatewayMetrics
from gateway.telemetry.tracing import UNTRACED, RequestTracing, TracedUse

_CANCELLED = "cancelled"
_TOKEN_BYTES = 4
_GAPS_AT_ONCE = 64  # handed on together: one by one they cost as much as telling the token


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request; `cached_tokens` is the part of the prompt that was not computed."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    tiers: TierTokens | None = None  # where the cached tokens lay; None: not shown
    reasoning_tokens: int = 0  # of the completion's; known at the end
    cache_miss: CacheMiss | None = None  # why it missed, if that was asked
    # Of the prompt, put in the cache for each of its marks; several prompts are added up.
    written: tuple[int, ...] = ()
    retained_s: tuple[float, ...] = ()  # by each mark, after each use

    def written_by_seconds(self) -> dict[float, int]:
        """The written tokens by the time for which they are retained.

        What comes up to a mark comes up to those behind it as well, and one may ask for longer.
        """
        written: dict[float, int] = {}
        longest = 0.0
        for tokens, seconds in reversed([*zip(self.written, self.retained_s, strict=False)]):
            longest = max(longest, seconds)
            written[longest] = written.get(longest, 0) + tokens
        return written


class RequestMetrics:
    """Sees every event of one request."""

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
        self._streamed: dict[int, int] = {}  # tokens by choice, as far as it has come
        self._reused: dict[int, Reused] = {}  # by choice
        self._gaps: list[float] = []
        self._reasoning_tokens = 0
        self._first_token_s: float | None = None  # since it arrived
        self._prefill_s: float | None = None  # of the first choice that has a token and keeps it
        self._outcome = "internal_error"

    def see(self, event: Event) -> None:
        """Count one event."""
        if isinstance(event, Delta):
            if event.is_restart:
                self._restart(event.index)
            if event.token_ids:
                index = event.index
                self._streamed[index] = self._streamed.get(index, 0) + len(event.token_ids)
                self._time(event)
            if event.reused is not None:
                self._reuse(event.index, event.reused)
            return
        self._streamed[event.index] = event.completion_tokens
        self._reuse(event.index, event.reused)
        self._reasoning_tokens += event.reasoning_tokens
        self._outcome = event.reason

    def usage(self) -> Usage:
        """What has been used so far; each prompt counts once, however many choices it has."""
        reused = self._by_prompt().values()
        cached = sum(one.tokens for one in reused)
        return Usage(
            prompt_tokens=self._admitted.prompt_tokens,
            cached_tokens=cached,
            completion_tokens=sum(self._streamed.values()),
            tiers=sum((one.by_tier for one in reused), TierTokens()),
            reasoning_tokens=self._reasoning_tokens,
            cache_miss=self._cache_miss(cached) if self._admitted.explains else None,
            written=tuple(map(sum, zip_longest(*(one.written for one in reused), fillvalue=0))),
            retained_s=tuple(mark.seconds for mark in self._admitted.generates[0].marks),
        )

    def worked(self) -> TokenCounts:
        """What was computed, as far as is known, for limits to count.

        A prompt that the engine failed or refused before its first token was not computed. One
        that its client abandoned counts: it may well have been, and would else be free.
        """
        reused = self._by_prompt()
        begun = range(self._prompts()) if self._outcome == _CANCELLED else list(reused)
        cached = sum(one.tokens for one in reused.values())
        return TokenCounts(
            computed=sum(map(self._length, begun)) - cached,
            cached=cached,
            generated=sum(self._streamed.values()),
        )

    def missed(self) -> CacheMiss | None:
        """Why it missed; None unless it was compared and begun."""
        reused = self._by_prompt().values()
        return self._cache_miss(sum(one.tokens for one in reused)) if reused else None

    def saved_ms(self) -> float | None:
        """The engine's time that the cache has saved; None: nothing has been measured."""
        saved = [one.saved_seconds for one in self._by_prompt().values()]
        known = [seconds for seconds in saved if seconds is not None]
        return sum(known) * 1000 if known else None

    def use(self) -> RequestUse:
        """How it ended, or stands; for the access log."""
        usage = self.usage()
        return RequestUse(
            self._outcome,
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.completion_tokens,
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

    def _length(self, prompt: int) -> int:
        """The tokens of a prompt, which its first choice bears as int32."""
        generate = self._admitted.generates[prompt * self._admitted.choices]
        return len(generate.token_ids) // _TOKEN_BYTES

    def _restart(self, index: int) -> None:
        """What the choice had used is nobody's; what the prompt's other choices used remains."""
        self._streamed.pop(index, None)
        self._last_token_at.pop(index, None)  # what comes next ends no gap between tokens
        self._reused.pop(index, None)
        self._prefill_s = None

    def _reuse(self, index: int, reused: Reused) -> None:
        self._reused[index] = min(reused, self._reused.get(index, reused), key=_num_tokens)

    def _by_prompt(self) -> dict[int, Reused]:
        """The choices of a prompt share it: what one of them computed was not cached."""
        found: dict[int, Reused] = {}
        for index, reused in self._reused.items():
            prompt = index // self._admitted.choices
            found[prompt] = min(reused, found.get(prompt, reused), key=_num_tokens)
        return found

    def _cache_miss(self, cached: int) -> CacheMiss | None:
        compared = self._admitted.comparison
        if compared is None:
            return None
        computed = self._admitted.prompt_tokens - cached
        rate = None if self._prefill_s is None else self._prefill_s / max(1, computed)
        return cache_miss(compared, cached, rate)

    def _prompts(self) -> int:
        return len(self._admitted.generates) // self._admitted.choices

    def _report(self) -> None:
        usage = self.usage()
        self._hand_on_gaps()
        used = TracedUse(
            usage.prompt_tokens,
            usage.cached_tokens,
            sum(usage.written),
            usage.completion_tokens,
            usage.reasoning_tokens,
        )
        self._trace.used(self._outcome, used)
        self._metrics.ended(
            self._route,
            self._outcome,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            generated_tokens=usage.completion_tokens,
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
            self._gaps.append(now - before)
            if len(self._gaps) >= _GAPS_AT_ONCE:
                self._hand_on_gaps()
        self._last_token_at[index] = now

    def _hand_on_gaps(self) -> None:
        self._metrics.gaps(self._gaps)
        self._gaps.clear()


def _num_tokens(reused: Reused) -> int:
    return reused.tokens
