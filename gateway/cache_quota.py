"""A tenant's quota of the cache, as the operator sets it and as it is stored with the tenant.

Its weight is the tenant's own. Knows: fields and bounds. Does not know: what a quota does.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Share = Annotated[float, Meta(ge=0, le=1)]


class CacheQuota(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Floor and ceiling, as shares of every tier; ValueError if the floor is the higher."""

    floor: Share = 0.0  # what other tenants cannot take from it
    ceiling: Share = 1.0  # the most that it keeps

    def __post_init__(self) -> None:
        """Refuse a floor above the ceiling."""
        if self.floor > self.ceiling:
            raise ValueError("the floor of a cache quota is above its ceiling")

    @property
    def shares(self) -> tuple[float, float] | None:
        """(floor, ceiling) for the engine; None for no quota."""
        return None if self == CacheQuota() else (self.floor, self.ceiling)
