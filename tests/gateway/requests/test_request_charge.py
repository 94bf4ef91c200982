"""A request is added to usage once, at its end; the engine's later reports are added after that."""

from __future__ import annotations

from datetime import UTC, datetime

from engine.link.event_messages import Failed, Reused, WrittenAndRead
from engine.link.stats.tier_stats import TierTokens
from gateway.caller import Caller
from gateway.generation.choice import Delta
from gateway.requests.request_charge import RequestCharge
from gateway.requests.request_metrics import RequestMetrics
from gateway.state.usage_records import Counters
from gateway.telemetry.metrics import GatewayMetrics
from gateway.tenant_limits import TokenCounts
from gateway.usage.aggregator import UsageAggregator
from tests.gateway.state.memory_store import MemoryStore
from tests.gateway.support.admitted import admitted
from tests.gateway.support.ended import engine_end
from tests.gateway.support.manual_clock import ManualClock

ADA = Caller("tn_ada", "key_1")


class Till:
    """A request of 100 tokens with two choices, and the usage that it causes."""

    def __init__(self) -> None:
        self._store = MemoryStore()
        self._aggregator = UsageAggregator(self._store, lambda: 0.0)
        asked = admitted(100, choices=2)
        self.metrics = RequestMetrics(GatewayMetrics(), "/v1/completions", asked, 0, ManualClock())
        writer = self._aggregator.writer(ADA)
        self.charge = RequestCharge(self._aggregator, ADA, writer, self.metrics)

    async def used(self) -> Counters:
        await self._aggregator.store()
        day = datetime.fromtimestamp(0, UTC).strftime("%Y-%m-%d")
        rows = await self._store.usage(day, day)
        return rows[0].counters if rows else Counters()


def tokens(used: Counters) -> TokenCounts:
    return TokenCounts(used.computed_tokens, used.cached_tokens, used.generated_tokens)


async def test_it_is_added_once_at_its_end() -> None:
    till = Till()
    till.charge.end(0, engine_end(100, 5, Reused(TierTokens(32))))
    till.charge.end(1, engine_end(100, 7, Reused(TierTokens(96))))
    used = await till.used()
    assert (used.requests, tokens(used)) == (0, TokenCounts())
    till.charge.over()
    used = await till.used()
    assert (used.requests, tokens(used)) == (1, TokenCounts(72, 32, 12))


async def test_an_end_that_comes_later_adds_what_was_not_known() -> None:
    till = Till()
    till.metrics.see(Delta(0, "a", (1,), None, Reused(TierTokens(32))))
    till.charge.end(1, engine_end(100, 7, Reused(TierTokens(96))))
    till.charge.over()
    assert tokens(await till.used()) == TokenCounts(72, 32, 8)
    till.charge.end(0, engine_end(100, 5, Reused(TierTokens(32))))
    used = await till.used()
    assert (used.requests, tokens(used)) == (1, TokenCounts(72, 32, 12))


async def test_what_a_request_wrote_and_was_first_to_read_is_added_however_it_ends() -> None:
    till = Till()
    cache = WrittenAndRead(written=16)
    till.charge.end(0, Failed(request_id="", code="x", message="", cache=cache))
    assert (await till.used()).cache_written_tokens == 16
