"""The charge of one request to its caller's usage, at its end or later.

Normally the engine ends a choice before the choice's request is over. If the engine is stalled when
the request ends, its message that the choice has ended arrives later. The choice is charged then.

Elsewhere: when a request is over (`gateway.requests.answering`).
"""

from engine.link.event_messages import Failed, Finished
from gateway.caller import Caller
from gateway.requests.request_metrics import RequestMetrics
from gateway.state.usage_records import Counters
from gateway.tenant_limits import TokenCounts
from gateway.usage.aggregator import UsageAggregator


class RequestCharge:
    """The charge of one request. `writer` labels the blocks that the request writes."""

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
        self._added: TokenCounts | None = None  # None: the request is not over

    def end(self, index: int, end: Finished | Failed) -> None:
        """Record that the engine has ended a choice."""
        self._request_metrics.end(index, end)
        if isinstance(end, Finished):
            self._aggregator.add(self.caller, Counters(engine_ms=end.engine_seconds * 1000))
        self._aggregator.add_cache(self._writer, end.cache)
        if self._added is not None:
            self._add(Counters(), self._added)

    def over(self) -> None:
        """Charge the request and its use, at the request's end."""
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
