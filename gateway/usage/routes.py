"""`/v1/usage`: the calling tenant's usage by key and day; `/admin/usage`: every tenant's usage.

Both routes answer for a range of days, as JSON or CSV.
"""
# `from __future__ import annotations` would break FastAPI: it evaluates the handlers' annotations,
# which name local variables.

import asyncio
import csv
import io
from collections.abc import Awaitable, Callable, Sequence
from datetime import date, timedelta
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response

from gateway.caller import Caller
from gateway.errors import BadRequest
from gateway.http.openapi import described
from gateway.processes.tenant_turns import seen_out
from gateway.state.store import UsageStore
from gateway.state.usage_records import UsageRow
from gateway.usage.aggregator import day_of
from gateway.usage.reports import Reports
from gateway.views import view_of

MAX_DAYS = 366
DEFAULT_DAYS = 31
A_DAY: dict[str, Any] = {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]}
A_FORMAT: dict[str, Any] = {"anyOf": [{"enum": ["json", "csv"]}, {"type": "null"}]}
_HEADERS = {"cache-control": "no-store"}
# A spreadsheet runs a cell that begins with one of these characters. The gateway makes no such id,
# but a restored record might have one.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class UsageView(msgspec.Struct, frozen=True, kw_only=True):
    """One key's usage on one day. None: not measured. Saved tokens are the cached tokens.

    Unread tokens were put into the cache by the key's requests on that day. No request has found
    them since.
    """

    day: str
    tenant_id: str
    key_id: str
    requests: int
    computed_tokens: int
    cached_tokens: int
    generated_tokens: int
    engine_ms: float | None
    saved_tokens: int
    saved_ms: float | None
    cache_written_tokens: int
    cache_unread_tokens: int

    @classmethod
    def of(cls, row: UsageRow) -> "UsageView":
        """Make the view of a usage row."""
        used = row.counters
        return view_of(
            cls,
            row,
            used,
            saved_tokens=used.cached_tokens,
            # Tokens may be found before the request that wrote them reports them, or without a
            # report.
            cache_unread_tokens=max(used.cache_written_tokens - used.cache_read_tokens, 0),
        )


class UsageList(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of GET /v1/usage and /admin/usage: the first and the last day are included."""

    first_day: str
    last_day: str
    usage: list[UsageView]


def usage_router(usage_store: UsageStore, clock: Callable[[], float]) -> APIRouter:
    """Serve `GET /admin/usage`. `admin_router` guards the route."""

    async def any_tenant(tenant: str | None = None) -> str | None:
        return tenant

    return _router("/admin/usage", usage_store, clock, any_tenant, Reports())


def own_usage_router(
    usage_store: UsageStore,
    authenticate: Callable[[Request], Awaitable[Caller]],
    clock: Callable[[], float],
    reports: Reports,
) -> APIRouter:
    """Serve `GET /v1/usage`."""

    async def own(caller: Annotated[Caller, Depends(authenticate)]) -> str:
        return caller.tenant_id

    return _router("/v1/usage", usage_store, clock, own, reports)


def _router(
    path: str,
    usage_store: UsageStore,
    clock: Callable[[], float],
    whose: Callable[..., Awaitable[str | None]],
    reports: Reports,
) -> APIRouter:
    """Serve, at `path`, the usage report of the tenant that `whose` returns (None: all tenants)."""
    router = APIRouter()

    @router.get(path, openapi_extra=described(UsageList, texts=["text/csv"]))
    async def show(
        request: Request,
        tenant_id: Annotated[str | None, Depends(whose)],
        first: Annotated[str | None, Query(alias="from", json_schema_extra=A_DAY)] = None,
        last: Annotated[str | None, Query(alias="to", json_schema_extra=A_DAY)] = None,
        key: str | None = None,
        format: Annotated[str | None, Query(json_schema_extra=A_FORMAT)] = None,  # noqa: A002 (the parameter's name on the wire)
    ) -> Response:
        days = days_of(first, last, clock())

        async def made() -> Response:
            rows = await usage_store.usage(*days, tenant_id=tenant_id, key_id=key)
            # Done in a thread, since a report has a row for each key and day, and is serialised in
            # one piece.
            return await seen_out(asyncio.to_thread(usage_response, request, format, days, rows))

        return await reports.answer(request, made)

    return router


def days_of(first: str | None, last: str | None, now: float) -> tuple[str, str]:
    """Read the days `from` and `to`, by default the last DEFAULT_DAYS days; raise BadRequest."""
    end = _day("to", last or day_of(now))
    if first is None:
        return str(_back(end, DEFAULT_DAYS - 1)), str(end)
    start = _day("from", first)
    if start > end:
        raise BadRequest("`from` is after `to`", param="from")
    if (end - start).days >= MAX_DAYS:
        raise BadRequest(f"at most {MAX_DAYS} days can be asked for", param="from")
    return str(start), str(end)


def usage_response(
    request: Request, wanted: str | None, days: tuple[str, str], rows: Sequence[UsageRow]
) -> Response:
    """Write usage rows as JSON, or as CSV for `format=csv` or `Accept: text/csv`.

    Raises BadRequest for any other format.
    """
    views = [UsageView.of(row) for row in rows]
    if wanted not in (None, "json", "csv"):
        raise BadRequest("`format` must be json or csv", param="format")
    if wanted == "csv" or (wanted is None and _accepts_csv(request)):
        return Response(_csv(views), media_type="text/csv", headers=_HEADERS)
    answer = UsageList(first_day=days[0], last_day=days[1], usage=views)
    return Response(msgspec.json.encode(answer), media_type="application/json", headers=_HEADERS)


def _day(name: str, text: str) -> date:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise BadRequest(f"`{name}` is not a day such as 2026-01-31", param=name) from None
    if str(day) != text:  # refuses other forms of ISO 8601
        raise BadRequest(f"`{name}` is not a day such as 2026-01-31", param=name)
    return day


def _back(day: date, days: int) -> date:
    return day - timedelta(days=min(days, (day - date.min).days))


def _accepts_csv(request: Request) -> bool:
    kinds = request.headers.get("accept", "").split(",")
    return "text/csv" in [kind.partition(";")[0].strip().lower() for kind in kinds]


def _csv(views: Sequence[UsageView]) -> str:
    out = io.StringIO()
    writer = csv.writer(out)
    columns = UsageView.__struct_fields__
    writer.writerow(columns)
    for view in views:
        writer.writerow([_cell(getattr(view, name)) for name in columns])
    return out.getvalue()


def _cell(value: str | float | None) -> str | float:
    if value is None:
        return ""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
