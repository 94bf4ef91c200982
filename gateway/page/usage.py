"""The data of a tenant's page: its usage by day, its latest misses and its limits."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

import msgspec

from gateway.diagnosis.misses import Miss
from gateway.state.usage_records import Counters, UsageRow
from gateway.tenant_limits import Limits

DAY_S = 86_400


class WhoseUsage(msgspec.Struct, frozen=True):
    """The signed-in tenant whose usage is shown."""

    id: str
    name: str


class UsageSample(msgspec.Struct, frozen=True, kw_only=True):
    """One day's usage in tokens, in UTC. `t` is the day's beginning in seconds since the epoch."""

    t: float
    prompt: int
    cached: int
    generated: int
    requests: int


class UsageData(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of GET /usage/data.

    The usage is of recent days at all gateways. The `misses` are of this gateway.

    `saved_seconds` is None if the engine has measured nothing.
    """

    tenant: WhoseUsage
    window_s: int
    hit_rate: float | None
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    generated_tokens: int
    requests: int
    saved_seconds: float | None
    samples: list[UsageSample]
    misses: list[Miss]
    limits: Limits


def usage_data(
    tenant: WhoseUsage,
    days: tuple[str, str],
    rows: Sequence[UsageRow],
    misses: list[Miss],
    limits: Limits,
) -> UsageData:
    """Sum up a tenant's usage `rows` on `days`, the first and the last day."""
    total, by_day = Counters(), dict.fromkeys(_all_days(*days), Counters())
    for row in rows:
        total = total.plus(row.counters)
        by_day[row.day] = by_day[row.day].plus(row.counters)
    prompt = total.computed_tokens + total.cached_tokens
    return UsageData(
        tenant=tenant,
        window_s=len(by_day) * DAY_S,
        hit_rate=total.cached_tokens / prompt if prompt else None,
        prompt_tokens=prompt,
        cached_tokens=total.cached_tokens,
        computed_tokens=total.computed_tokens,
        generated_tokens=total.generated_tokens,
        requests=total.requests,
        saved_seconds=None if total.saved_ms is None else total.saved_ms / 1000,
        samples=[_sample(day, used) for day, used in by_day.items()],
        misses=misses,
        limits=limits,
    )


def _all_days(first: str, last: str) -> list[str]:
    start = date.fromisoformat(first)
    count = (date.fromisoformat(last) - start).days + 1
    return [str(start + timedelta(days=number)) for number in range(count)]


def _sample(day: str, used: Counters) -> UsageSample:
    return UsageSample(
        t=datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp(),
        prompt=used.computed_tokens + used.cached_tokens,
        cached=used.cached_tokens,
        generated=used.generated_tokens,
        requests=used.requests,
    )
