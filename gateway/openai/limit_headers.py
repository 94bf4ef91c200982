"""What is left of a tenant's rates, as OpenAI's `x-ratelimit-*` headers.

Knows: names and how a duration is written. Does not know: where the numbers come from.
"""

from __future__ import annotations

import math

from gateway.limits.standing import Allowance, Standing


def limit_headers(standing: Standing) -> dict[str, str]:
    """The headers of each rate that the tenant has."""
    return _of("requests", standing.requests) | _of("tokens", standing.tokens)


def _of(what: str, allowance: Allowance | None) -> dict[str, str]:
    if allowance is None:
        return {}
    return {
        f"x-ratelimit-limit-{what}": str(allowance.limit),
        f"x-ratelimit-remaining-{what}": str(allowance.remaining),
        f"x-ratelimit-reset-{what}": duration(allowance.reset_s),
    }


def duration(seconds: float) -> str:
    """`120ms`, `7s`, `6m0s`: rounded up, so that waiting this long is never too short."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    whole = math.ceil(seconds)
    return f"{whole // 60}m{whole % 60}s" if whole >= 60 else f"{whole}s"
