"""A tenant's remaining rate limits as Anthropic's `anthropic-ratelimit-*` headers."""

from datetime import UTC, datetime, timedelta

from gateway.tenant_limits import Allowance, RateStatus

LIMIT_FIELDS = tuple(
    f"anthropic-ratelimit-{what}-{part}"
    for what in ("requests", "tokens")
    for part in ("limit", "remaining", "reset")
)


def limit_headers(standing: RateStatus) -> dict[str, str]:
    """Write the headers for each rate limit of the tenant."""
    return _of("requests", standing.requests) | _of("tokens", standing.tokens)


def _of(what: str, allowance: Allowance | None) -> dict[str, str]:
    if allowance is None:
        return {}
    reset = datetime.now(UTC) + timedelta(seconds=allowance.reset_s)
    return {
        f"anthropic-ratelimit-{what}-limit": str(allowance.limit),
        f"anthropic-ratelimit-{what}-remaining": str(allowance.remaining),
        f"anthropic-ratelimit-{what}-reset": reset.isoformat(timespec="seconds"),
    }
