"""A tenant's limits and quota, the unused parts of its limits, and prices of tokens for budgets.

The operator decides what a unit of a budget means.
"""

import math
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Period = Literal["month", "total"]
Reason = Literal["requests", "tokens", "concurrent", "budget"]

# Within these ranges every number of `token_bucket.py` is exact as a double, Lua's only number.
MAX_RATE = 100_000_000
MAX_BURST_S = 60.0
MAX_REQUEST_TOKENS = 2**30
MAX_UNITS = 1_000_000_000.0
MICRO = 1_000_000  # number of micro-units in a unit; budgets are counted in whole micro-units
MAX_PRICE = 1e6

Rate = Annotated[int, Meta(ge=1, le=MAX_RATE)]
Share = Annotated[float, Meta(ge=0, le=1)]


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A limit on spending in a calendar month (UTC) or ever, in units of the price list."""

    units: Annotated[float, Meta(ge=0, le=MAX_UNITS)]
    period: Period = "month"


class Limits(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The limits on a tenant's use; None: unlimited.

    A burst may be as large as the rate allows in `burst_s` seconds, by default in a minute.
    `tokens_per_minute` counts computed prompt tokens and generated tokens, but no cached tokens.
    Without `max_concurrent` a tenant with any other limit may run 8,192 requests at once.
    """

    requests_per_minute: Rate | None = None
    tokens_per_minute: Rate | None = None
    burst_s: Annotated[float, Meta(gt=0, le=MAX_BURST_S)] | None = None
    max_concurrent: Annotated[int, Meta(ge=1, le=MAX_RATE)] | None = None
    budget: Budget | None = None
    # maximum number of tokens of one request: prompt and answer, with each prompt module rounded
    # up to whole blocks; None: the model's context
    max_request_tokens: Annotated[int, Meta(ge=1, le=MAX_REQUEST_TOKENS)] | None = None

    @property
    def is_unlimited(self) -> bool:
        """True if no limit applies to several requests together."""
        return (
            self.requests_per_minute is None
            and self.tokens_per_minute is None
            and self.max_concurrent is None
            and self.budget is None
        )


class CacheQuota(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A tenant's shares of every tier. Raises ValueError for a floor above the ceiling."""

    floor: Share = 0.0  # share of every tier that other tenants cannot take from the tenant
    ceiling: Share = 1.0  # maximum share of every tier that the tenant keeps

    def __post_init__(self) -> None:
        if self.floor > self.ceiling:
            raise ValueError("the floor of a cache quota is above its ceiling")

    @property
    def shares(self) -> tuple[float, float] | None:
        """The floor and the ceiling for the engine; None for the default quota."""
        return None if self == CacheQuota() else (self.floor, self.ceiling)


class Allowance(msgspec.Struct, frozen=True):
    """A rate's limit per minute, the amount left now, and the seconds until it is full again."""

    limit: int
    remaining: int
    reset_s: float


class RateStatus(msgspec.Struct, frozen=True):
    """The allowances of a tenant's rates; None for a rate without a limit."""

    requests: Allowance | None = None
    tokens: Allowance | None = None


class TokenCounts(msgspec.Struct, frozen=True):
    """The token counts of one request."""

    computed: int = 0  # number of computed prompt tokens, added up over the choices
    cached: int = 0  # number of cached prompt tokens, counted once for all choices
    generated: int = 0

    @property
    def worked(self) -> int:
        """The tokens that took work, which `tokens_per_minute` counts."""
        return self.computed + self.generated


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """The prices of a million tokens, in units."""

    computed: float = 1.0
    cached: float = 0.1
    generated: float = 4.0

    def __post_init__(self) -> None:
        """Raise ValueError for prices by which a charge could be larger than its reservation."""
        cached_is_least = 0 <= self.cached <= self.computed <= MAX_PRICE
        if not cached_is_least or not 0 <= self.generated <= MAX_PRICE:
            raise ValueError(
                "prices must satisfy 0 <= cached <= computed <= 1e6 and 0 <= generated <= 1e6"
            )

    def cost(self, tokens: TokenCounts) -> int:
        """Compute the cost of `tokens` in micro-units, rounded up."""
        return math.ceil(
            self.computed * tokens.computed
            + self.cached * tokens.cached
            + self.generated * tokens.generated
        )
