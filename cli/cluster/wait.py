"""Predictions of an engine's use and of a new request's wait, from the engine's counters.

    wait    prompt tokens not computed yet, divided by the tokens a second that large steps compute;
            at least the time for which the oldest waiting request has waited
    used    the larger of two shares: the share of the last minute spent on computing prompts, and
            the number of requests divided by the number of sequences that may run at once

An engine below its limit has almost no wait however busy it is. So the wait alone does not show
whether the engine can be removed.

The engine is queried, not a gateway, because each worker of a gateway knows only its own requests.
All tokens of a waiting prompt count, because the number of cached tokens is known only once the
prompt is scheduled.
"""

import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from engine.link.query import Query, R
from engine.link.query_messages import StatsQuery
from engine.link.view_messages import Sequences, SequencesQuery

MOST_SEQUENCES = 1000
RATE_S = 30.0  # seconds between two queries of rates and counts, whose replies list all flows
WINDOW = "1m"
WINDOW_S = 60.0
RATE_CONTEXT = 1024  # context length, in tokens, at which the prefill rate is read
NOT_MEASURED = 1e4  # tokens a second, assumed for an engine that has computed nothing yet

_UNBEGUN = ("waiting", "loading", "prefill")


class WaitSource(Protocol):
    """The part of an engine's client that predictions use."""

    async def ask(self, query: Query[R], within_s: float | None = None) -> R:
        """Return the reply to a query. Raises EngineError."""
        ...


class Prediction(NamedTuple):
    """The predicted wait of a new request in an engine, and the engine's use."""

    wait_s: float
    used: float  # used share of the engine's capacity, 1 if fully used


class PredictedWait:
    """The predictor for one engine, which runs `max_running` sequences at a time."""

    def __init__(self, max_running: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_running = max_running
        self._clock = clock
        self._rate = NOT_MEASURED
        self._computes = 0.0  # share of the time in which the engine computes
        self._rate_at = float("-inf")

    async def look(self, engine: WaitSource) -> Prediction:
        """Query the engine; predict its use and a new request's wait. Raises EngineError."""
        now = self._clock()
        if now - self._rate_at >= RATE_S:
            self._rate_at = now
            stats = (await engine.ask(StatsQuery(), None)).stats
            rates = stats.tiers.prefill
            self._rate = rates.get(RATE_CONTEXT) or next(iter(rates.values()), NOT_MEASURED)
            self._computes = stats.windows[WINDOW].computed_tokens / (self._rate * WINDOW_S)
        found = await engine.ask(SequencesQuery(limit=MOST_SEQUENCES), None)
        used = max(self._computes, found.total / self._max_running)
        return Prediction(predicted(found, self._rate), used)


def predicted(found: Sequences, rate: float) -> float:
    """Predict the wait in seconds at `rate` tokens a second.

    Requests that are not listed count as average requests.
    """
    unbegun = [one for one in found.sequences if one.state in _UNBEGUN]
    tokens = sum(one.prompt_tokens - one.cached_tokens for one in unbegun)
    listed = len(found.sequences)
    if listed:
        tokens = tokens * found.total // listed
    waited = max((one.age_s for one in unbegun if one.state == "waiting"), default=0.0)
    return max(tokens / rate, waited)
