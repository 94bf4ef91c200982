"""`/v1/usage`: what the calling tenant used, by key and day.

Knows: whose usage is shown: the caller's. Does not know: how it is counted (`gateway.usage`).
"""
# No `from __future__ import annotations`: FastAPI evaluates the annotations of the handler, and
# they name `authenticate`, which is a local variable.

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from gateway.caller import Caller
from gateway.openapi import described_report
from gateway.state.store import UsageLedger
from gateway.usage_report import Days, UsageList, usage_response


def own_usage_router(
    ledger: UsageLedger,
    authenticate: Callable[[Request], Awaitable[Caller]],
    clock: Callable[[], float],
) -> APIRouter:
    """`GET /v1/usage`."""
    router = APIRouter()

    @router.get("/v1/usage", openapi_extra=described_report(UsageList, "text/csv"))
    async def show(
        request: Request,
        caller: Annotated[Caller, Depends(authenticate)],
        first: Annotated[str | None, Query(alias="from")] = None,
        last: Annotated[str | None, Query(alias="to")] = None,
        key: str | None = None,
        format: str | None = None,  # noqa: A002 (the parameter's name on the wire)
    ) -> Response:
        days = Days.of(first, last, clock())
        rows = await ledger.usage(days.first, days.last, tenant_id=caller.tenant_id, key_id=key)
        return usage_response(request, format, days, rows)

    return router
