"""A whole gateway in memory. Its engines count tokens, and its `Books` record every charge.

There is no network: connections are made by hand. The clock of the limits does not move, so a
bucket holds every token that was charged to it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import uvicorn

from engine.link.interface import Engine
from gateway.config import Bounds, GatewayConfig
from gateway.http.app import build_app
from gateway.http.error_dialect import Dialects
from gateway.http.protocol.connection import BoundedConnection, connection_within
from gateway.limits.memory import MemoryLimiter
from gateway.limits.token_bucket import ONE, Moment, Spending
from gateway.replicas.flushes import FlushReader
from gateway.startup.composition import DIALECTS
from gateway.startup.first_start import ensure_first_start
from gateway.startup.serving_parts import Kept, open_answers, open_entry, open_kept
from gateway.state.records import Tenant
from gateway.tenant_limits import MAX_RATE, MAX_UNITS, Budget, Limits, Prices, TokenCounts
from tests.doubles.gateway.served import config_of

PRICES = Prices(computed=1.0, cached=0.25, generated=4.0)
BOUNDS = Bounds(
    max_unread_bytes=6 << 10, max_tenant_unread_bytes=12 << 10, max_answer_bytes=2 << 10
)
LIMITS = Limits(tokens_per_minute=MAX_RATE, budget=Budget(units=MAX_UNITS, period="total"))


class Books(MemoryLimiter):
    """A limiter that records every charge."""

    def __init__(self) -> None:
        super().__init__(lambda: Moment(0, 0))

    def charged(self, tenant_id: str) -> tuple[int, int]:
        """Return the tenant's charged tokens (rate) and micro-units (budget); check that nothing is
        held.
        """
        account = self._account(tenant_id)
        assert not account.running
        budget = account.budgets.get("total", Spending())
        return account.tokens.level // ONE, budget.spent


@dataclass(frozen=True)
class House:
    """A gateway in memory."""

    books: Books
    kind: type[BoundedConnection]
    app: uvicorn.Config
    kept: Kept

    async def tenant(self, name: str, limits: Limits = LIMITS) -> tuple[str, str]:
        """Create a tenant; return its id and key."""
        made = Tenant.new(name, created_at=time.time())
        await self.kept.state.home.store.create(msgspec.structs.replace(made, limits=limits))
        issued = await self.kept.sharing.keyring.issue(made.id)
        return made.id, issued.secret

    async def usage(self, tenant_id: str) -> TokenCounts:
        """Return the tenant's stored usage."""
        rows = await self.kept.state.home.store.usage("2000-01-01", "2999-01-01")
        used = [row.counters for row in rows if row.tenant_id == tenant_id]
        return TokenCounts(
            sum(one.computed_tokens for one in used),
            sum(one.cached_tokens for one in used),
            sum(one.generated_tokens for one in used),
        )


@asynccontextmanager
async def house(
    model: Path, data_dir: Path, engine: Engine, bounds: Bounds = BOUNDS
) -> AsyncIterator[House]:
    """Run a gateway with `engine` while this context is open."""
    config: GatewayConfig = config_of(
        model, data_dir, bounds=bounds, prices=PRICES, cache_sharing="pooled", access_log="off"
    )
    await ensure_first_start(data_dir, clock=time.time, shared=config)
    books = Books()
    async with AsyncExitStack() as stack:
        kept = await open_kept(config, engine, FlushReader(), None, stack)
        limits = replace(kept.state.limits, limiter=books)
        kept = replace(kept, state=replace(kept.state, limits=limits))
        entry = await open_entry(config, kept, stack)
        answers = await open_answers(config, engine, kept, entry, stack)
        dialects = Dialects(*DIALECTS)
        app = build_app([one.router(answers.parts) for one in DIALECTS], kept.metrics, dialects)
        server = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
        yield House(books, connection_within(bounds, dialects), server, kept)
