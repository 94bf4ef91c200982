"""The audit log of changes by admin routes, and `/admin/audit`, which lists its entries.

An entry is written after its change is made, so the log lists only changes that happened. If the
store cannot take the entry, the change stands, and the gateway's own log reports the missing entry.
There is only one operator's key, so an entry names no actor.
"""

import logging
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Response

from gateway.errors import BadRequest, Unavailable
from gateway.http.admin_json import json_response
from gateway.http.openapi import described
from gateway.state.records import AuditEntry
from gateway.state.store import AUDIT_KEPT, AuditLog

OPERATOR = "operator"
MAX_ENTRIES = 1000

_LOG = logging.getLogger(__name__)


class AuditTrail:
    """The operator's entries in the audit log. `clock` returns seconds since the epoch."""

    def __init__(self, log: AuditLog, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock

    async def note(self, action: str, target: str, **detail: Any) -> None:
        """Add an entry: `action` was done to `target`. `detail` never holds a key or a prompt."""
        entry = AuditEntry(
            time=self._clock(), actor=OPERATOR, action=action, target=target, detail=detail
        )
        try:
            await self._log.append_audit(entry)
        except Unavailable:
            _LOG.error("not in the audit log: %s of %s", action, target)


class AuditEntries(msgspec.Struct, frozen=True):
    """Answer of GET /admin/audit, the newest first."""

    entries: list[AuditEntry]


def audit_router(log: AuditLog) -> APIRouter:
    """Serve `GET /admin/audit`. `admin_router` guards the route."""
    router = APIRouter()

    @router.get("/admin/audit", openapi_extra=described(AuditEntries))
    async def show(
        limit: Annotated[
            int, Query(json_schema_extra={"minimum": 1, "maximum": MAX_ENTRIES})
        ] = 100,
        skip: Annotated[int, Query(json_schema_extra={"minimum": 0, "maximum": AUDIT_KEPT})] = 0,
    ) -> Response:
        if not 1 <= limit <= MAX_ENTRIES:
            raise BadRequest(f"`limit` must be from 1 to {MAX_ENTRIES}", param="limit")
        if not 0 <= skip <= AUDIT_KEPT:
            raise BadRequest(f"`skip` must be from 0 to {AUDIT_KEPT}", param="skip")
        return json_response(AuditEntries(await log.list_audit(limit=limit, skip=skip)))

    return router
