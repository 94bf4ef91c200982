"""The limits of a tenant, as the operator sets them and as they are stored with the tenant.

Knows: fields, units and bounds. Does not know: how they are held (`account`) or where.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Period = Literal["month", "total"]

# With these bounds every number of `bucket` and `account` is exact in a double, as Lua has them.
MAX_RATE = 100_000_000  # a minute
MAX_BURST_S = 60.0
MAX_UNITS = 1_000_000_000.0

Rate = Annotated[int, Meta(ge=1, le=MAX_RATE)]


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be spent in a calendar month (UTC) or ever, in units of the price list."""

    units: Annotated[float, Meta(ge=0, le=MAX_UNITS)]
    period: Period = "month"


class Limits(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What a tenant may use; None is unlimited.

    `burst_s` is how much may come at once: the rate of this many seconds; None: of a minute.
    `tokens_per_minute` counts computed prompt tokens and generated tokens; cached tokens do not
    count.
    """

    requests_per_minute: Rate | None = None
    tokens_per_minute: Rate | None = None
    burst_s: Annotated[float, Meta(gt=0, le=MAX_BURST_S)] | None = None
    max_concurrent: Annotated[int, Meta(ge=1, le=MAX_RATE)] | None = None
    budget: Budget | None = None

    @property
    def is_unlimited(self) -> bool:
        """Whether no limit is set."""
        return (
            self.requests_per_minute is None
            and self.tokens_per_minute is None
            and self.max_concurrent is None
            and self.budget is None
        )
