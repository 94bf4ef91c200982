"""Reports of usage: from a range of days to JSON or CSV.

Knows: what is shown of the ledger, and how. Does not know: who may ask for whose.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import date, timedelta

import msgspec
from fastapi import Request, Response

from gateway.errors import BadRequest
from gateway.state.records import UsageRow
from gateway.usage import day_of

MAX_DAYS = 366
DEFAULT_DAYS = 31
_HEADERS = {"cache-control": "no-store"}
# A spreadsheet would run a cell that begins like this. No id does, but a restored record might.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class UsageView(msgspec.Struct, frozen=True, kw_only=True):
    """One key's use of one day. None: not measured. Saved tokens are the cached ones.

    Of the tokens that its requests put into the cache on that day, no request has found the unread
    ones to this day.
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
    def of(cls, row: UsageRow) -> UsageView:
        """The view of a row of the ledger."""
        used = row.counters
        return cls(
            day=row.day,
            tenant_id=row.tenant_id,
            key_id=row.key_id,
            requests=used.requests,
            computed_tokens=used.computed_tokens,
            cached_tokens=used.cached_tokens,
            generated_tokens=used.generated_tokens,
            engine_ms=used.engine_ms,
            saved_tokens=used.cached_tokens,
            saved_ms=used.saved_ms,
            cache_written_tokens=used.cache_written_tokens,
            # Read before the writer's request has told that it wrote them, or never told.
            cache_unread_tokens=max(used.cache_written_tokens - used.cache_read_tokens, 0),
        )


class UsageList(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of GET /v1/usage and /admin/usage: both days are included."""

    first_day: str
    last_day: str
    usage: list[UsageView]


class Days(msgspec.Struct, frozen=True):
    """A range of days as `YYYY-MM-DD`, both included."""

    first: str
    last: str

    @classmethod
    def of(cls, first: str | None, last: str | None, now: float) -> Days:
        """The days of `from` and `to`; by default the last DEFAULT_DAYS. Raises BadRequest."""
        end = _day("to", last or day_of(now))
        if first is None:
            return cls(str(_back(end, DEFAULT_DAYS - 1)), str(end))
        start = _day("from", first)
        if start > end:
            raise BadRequest("`from` is after `to`", param="from")
        if (end - start).days >= MAX_DAYS:
            raise BadRequest(f"at most {MAX_DAYS} days can be asked for", param="from")
        return cls(str(start), str(end))


def usage_response(
    request: Request, wanted: str | None, days: Days, rows: Sequence[UsageRow]
) -> Response:
    """The rows as JSON; as CSV for `format=csv`, or without a format for `Accept: text/csv`.

    Raises BadRequest for any other format.
    """
    views = [UsageView.of(row) for row in rows]
    if wanted not in (None, "json", "csv"):
        raise BadRequest("`format` must be json or csv", param="format")
    if wanted == "csv" or (wanted is None and _accepts_csv(request)):
        return Response(_csv(views), media_type="text/csv", headers=_HEADERS)
    answer = UsageList(first_day=days.first, last_day=days.last, usage=views)
    return Response(msgspec.json.encode(answer), media_type="application/json", headers=_HEADERS)


def _day(name: str, text: str) -> date:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise BadRequest(f"`{name}` is not a day such as 2026-01-31", param=name) from None
    if str(day) != text:  # other forms of ISO 8601
        raise BadRequest(f"`{name}` is not a day such as 2026-01-31", param=name)
    return day


def _back(day: date, days: int) -> date:
    """`days` earlier, or the first day that a date can be."""
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
