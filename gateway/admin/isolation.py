"""`PUT /admin/isolation/report`, which stores the report of `ratoon verify-isolation`."""

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Response
from pydantic import Field

from gateway.admin.audit import AuditTrail
from gateway.http.admin_json import AdminBody, json_response, sent
from gateway.http.openapi import described
from gateway.state.records import IsolationReport
from gateway.state.store import IsolationReports

MAX_BYTES = 512 << 10


class IsolationBody(AdminBody):
    """Body of PUT /admin/isolation/report."""

    verdict: Annotated[str, Field(min_length=1, max_length=64)]
    samples: Annotated[int, Field(ge=0)]
    report: str  # in Markdown


SentReport = Annotated[IsolationBody, Depends(sent(IsolationBody, max_bytes=MAX_BYTES))]


def isolation_router(
    store: IsolationReports, audit: AuditTrail, clock: Callable[[], float]
) -> APIRouter:
    """Serve the report's route, guarded by `admin_router`. The overview shows the latest report."""
    router = APIRouter()

    @router.put("/admin/isolation/report", openapi_extra=described(IsolationReport, IsolationBody))
    async def keep(body: SentReport) -> Response:
        report = IsolationReport(
            at=clock(), verdict=body.verdict, samples=body.samples, report=body.report
        )
        await store.keep_isolation_report(report)
        await audit.note("isolation.report", body.verdict, samples=body.samples)
        return json_response(report)

    return router
