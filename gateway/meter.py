"""What one request used: its usage for the caller, its numbers for `/metrics`.

Knows: events of choices and when they came. Does not know: who asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.errors import EngineError
from engine.messages import WrittenAndRead
from engine.stats_messages import TierTokens
from gateway.admission import Admitted
from gateway.choice import Delta, Event
from gateway.limits.prices import Tokens
from gateway.metrics import GatewayMetrics
from gateway.tracing import UNTRACED, Trace

_CANCELLED = "cancelled"
_TOKEN_BYTES = 4
_GAPS_AT_ONCE = 64  # handed on together: one by one they cost as much as telling the token


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request; `cached_tokens` is the part of the prompt that was not computed."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    tiers: TierTokens = field(default_factory=TierTokens)  # where the cached tokens lay


class Took(NamedTuple):
    """Seconds of the engine. None: nobody has told."""

    engine: float | None
    saved: float | None


class _Reused(NamedTuple):
    """What of a prompt came from the cache."""

    tokens: int
    tiers: TierTokens
    saved_seconds: float | None


class Meter:
    """Sees every event of one request."""

    def __init__(
        self,
        metrics: GatewayMetrics,
        route: str,
        admitted: Admitted,
        arrived: float,
        clock: Callable[[], float],
        trace: Trace = UNTRACED,
    ) -> None:
        self._metrics = metrics
        self._route = route
        self._admitted = admitted
        self._arrived = arrived
        self._clock = clock
        self._trace = trace
        self._last_token_at: dict[int, float] = {}
        self._streamed: dict[int, int] = {}  # tokens by choice, as far as it has come
        self._cached: dict[int, _Reused] = {}  # by prompt
        self._engine_seconds: dict[int, float] = {}  # by choice
        self._written_and_read: list[WrittenAndRead] = []  # of choices that the engine ended
        self._gaps: list[float] = []
        self._outcome = "internal_error"

    def see(self, event: Event) -> None:
        """Count one event."""
        if isinstance(event, Delta):
            if event.token_ids:
                index = event.index
                self._streamed[index] = self._streamed.get(index, 0) + len(event.token_ids)
                self._time(event)
            if event.cached_tokens is not None:
                tiers = event.tiers or TierTokens()
                reused = _Reused(event.cached_tokens, tiers, event.saved_seconds)
                self._reuse(event.index, reused)
            return
        self._streamed[event.index] = event.completion_tokens
        reused = _Reused(event.cached_tokens, event.tiers, event.saved_seconds)
        self._reuse(event.index, reused)
        if event.engine_seconds is not None:
            self._engine_seconds[event.index] = event.engine_seconds
        if event.cache is not None:
            self._written_and_read.append(event.cache)
        self._outcome = event.reason

    def usage(self) -> Usage:
        """What has been used so far; each prompt counts once, however many choices it has."""
        reused = self._cached.values()
        return Usage(
            prompt_tokens=self._admitted.prompt_tokens,
            cached_tokens=sum(one.tokens for one in reused),
            completion_tokens=sum(self._streamed.values()),
            tiers=TierTokens(
                sum(one.tiers.device for one in reused),
                sum(one.tiers.host for one in reused),
                sum(one.tiers.disk for one in reused),
            ),
        )

    def worked(self) -> Tokens:
        """What was computed, as far as is known, for limits to count.

        A prompt that the engine failed or refused before its first token was not computed. One
        that its client abandoned counts: it may well have been, and would else be free.
        """
        begun = range(self._prompts()) if self._outcome == _CANCELLED else list(self._cached)
        cached = sum(one.tokens for one in self._cached.values())
        return Tokens(
            computed=sum(map(self._length, begun)) - cached,
            cached=cached,
            generated=sum(self._streamed.values()),
        )

    def took(self) -> Took:
        """The engine's seconds, spent and saved, as far as they have been told."""
        saved = [one.saved_seconds for one in self._cached.values()]
        known = [seconds for seconds in saved if seconds is not None]
        return Took(
            engine=sum(self._engine_seconds.values()) if self._engine_seconds else None,
            saved=sum(known) if known else None,
        )

    def written_and_read(self) -> list[WrittenAndRead]:
        """What was written into the cache and read there first, as far as it has been told."""
        return self._written_and_read

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

    def _reuse(self, index: int, reused: _Reused) -> None:
        """The choices of a prompt share it: what one of them computed was not cached."""
        prompt = index // self._admitted.choices
        self._cached[prompt] = min(reused, self._cached.get(prompt, reused), key=_num_tokens)

    def _prompts(self) -> int:
        return len(self._admitted.generates) // self._admitted.choices

    def _report(self) -> None:
        usage = self.usage()
        self._hand_on_gaps()
        self._trace.used(
            self._outcome,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            generated_tokens=usage.completion_tokens,
        )
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
        if event.queue_seconds is not None:
            self._metrics.queued(event.queue_seconds)
        if not self._last_token_at:
            self._metrics.first_token(now - self._arrived)
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


def _num_tokens(reused: _Reused) -> int:
    return reused.tokens
