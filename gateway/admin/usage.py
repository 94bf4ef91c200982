"""`/admin/usage`: what every tenant and key used, by day.

Knows: what can be asked for. Does not know: how it is counted (`gateway.usage`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from gateway.openapi import described_report
from gateway.state.store import UsageLedger
from gateway.usage_report import Days, UsageList, usage_response


def usage_router(ledger: UsageLedger, clock: Callable[[], float]) -> APIRouter:
    """`GET /admin/usage`, without its guard."""
    router = APIRouter()

    @router.get("/admin/usage", openapi_extra=described_report(UsageList, "text/csv"))
    async def show(
        request: Request,
        first: Annotated[str | None, Query(alias="from")] = None,
        last: Annotated[str | None, Query(alias="to")] = None,
        tenant: str | None = None,
        key: str | None = None,
        format: str | None = None,  # noqa: A002 (the parameter's name on the wire)
    ) -> Response:
        days = Days.of(first, last, clock())
        rows = await ledger.usage(days.first, days.last, tenant_id=tenant, key_id=key)
        return usage_response(request, format, days, rows)

    return router
