"""What one request used: its usage for the caller, its numbers for `/metrics`.

Knows: events of choices and when they came. Does not know: who asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter

from engine.errors import EngineError
from engine.messages import TierTokens
from gateway.admission import Admitted
from gateway.choice import Delta, Ended, Event
from gateway.metrics import GatewayMetrics

_GAPS_AT_ONCE = 64  # handed on together: one by one they cost as much as telling the token


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request; `cached_tokens` is the part of the prompt that was not computed."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    tiers: TierTokens = field(default_factory=TierTokens)  # where the cached tokens lay


class Meter:
    """Sees every event of one request."""

    def __init__(
        self,
        metrics: GatewayMetrics,
        route: str,
        admitted: Admitted,
        arrived: float,
        clock: Callable[[], float],
    ) -> None:
        self._metrics = metrics
        self._route = route
        self._admitted = admitted
        self._arrived = arrived
        self._clock = clock
        self._last_token_at: dict[int, float] = {}
        self._streamed: dict[int, int] = {}  # tokens by choice, as far as it has come
        self._cached: dict[int, Ended] = {}  # by prompt: the choice that found least
        self._gaps: list[float] = []
        self._outcome = "internal_error"

    def see(self, event: Event) -> None:
        """Count one event."""
        if isinstance(event, Delta):
            if event.token_ids:
                index = event.index
                self._streamed[index] = self._streamed.get(index, 0) + len(event.token_ids)
                self._time(index, event.queue_seconds)
            return
        self._streamed[event.index] = event.completion_tokens
        # The choices of a prompt share it: what one of them computed was not cached.
        prompt = event.index // self._admitted.choices
        least = self._cached.get(prompt, event)
        self._cached[prompt] = min(least, event, key=attrgetter("cached_tokens"))
        self._outcome = event.reason

    def usage(self) -> Usage:
        """What has been used so far; each prompt counts once, however many choices it has."""
        ends = self._cached.values()
        return Usage(
            prompt_tokens=self._admitted.prompt_tokens,
            cached_tokens=sum(end.cached_tokens for end in ends),
            completion_tokens=sum(self._streamed.values()),
            tiers=TierTokens(
                sum(end.tiers.device for end in ends),
                sum(end.tiers.host for end in ends),
                sum(end.tiers.disk for end in ends),
            ),
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
            self._outcome = "cancelled"
            raise
        finally:
            self._report()

    def _report(self) -> None:
        usage = self.usage()
        self._hand_on_gaps()
        self._metrics.ended(
            self._route,
            self._outcome,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            generated_tokens=usage.completion_tokens,
            seconds=self._clock() - self._arrived,
        )

    def _time(self, index: int, queue_seconds: float | None) -> None:
        now = self._clock()
        if queue_seconds is not None:
            self._metrics.queued(queue_seconds)
        if not self._last_token_at:
            self._metrics.first_token(now - self._arrived)
        before = self._last_token_at.get(index)
        if before is not None:
            self._gaps.append(now - before)
            if len(self._gaps) >= _GAPS_AT_ONCE:
                self._hand_on_gaps()
        self._last_token_at[index] = now

    def _hand_on_gaps(self) -> None:
        self._metrics.gaps(self._gaps)
        self._gaps.clear()
