"""The charge of one request to its caller's usage, at its end, and what is known later.

The engine ends a choice before its request is over, unless it stands still just then. Such an end
is added when it comes.

Knows: ends and counts. Does not know: when a request is over (`gateway.requests.answering`).
"""

from __future__ import annotations

from engine.link.messages import Failed, Finished
from gateway.caller import Caller
from gateway.requests.request_metrics import RequestMetrics
from gateway.state.records import Counters
from gateway.tenant_limits import TokenCounts
from gateway.usage.aggregator import UsageAggregator


class RequestCharge:
    """One request's. `writer`: the label under which it writes into the cache."""

    def __init__(
        self,
        aggregator: UsageAggregator,
        caller: Caller,
        writer: str,
        request_metrics: RequestMetrics,
    ) -> None:
        self._aggregator = aggregator
        self.caller = caller
        self._writer = writer
        self._request_metrics = request_metrics
        self._added: TokenCounts | None = None  # None: it is not over

    def end(self, index: int, end: Finished | Failed) -> None:
        """Note that the engine has ended a choice."""
        self._request_metrics.end(index, end)
        if isinstance(end, Finished):
            self._aggregator.add(self.caller, Counters(engine_ms=end.engine_seconds * 1000))
        self._aggregator.add_cache(self._writer, end.cache)
        if self._added is not None:
            self._add(Counters(), self._added)

    def over(self) -> None:
        """Count the request, which is over, and what it used."""
        saved_ms = self._request_metrics.saved_ms()
        self._add(Counters(requests=1, saved_ms=saved_ms), TokenCounts())

    def _add(self, counters: Counters, before: TokenCounts) -> None:
        self._added = used = self._request_metrics.worked()
        tokens = Counters(
            computed_tokens=used.computed - before.computed,
            cached_tokens=used.cached - before.cached,
            generated_tokens=used.generated - before.generated,
        )
        self._aggregator.add(self.caller, counters.plus(tokens))
