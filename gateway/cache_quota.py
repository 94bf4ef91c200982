"""A tenant's part of the cache, as it is stored with it and set by the operator.

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
    """Floor and ceiling, as shares of every tier; a ValueError where the floor is the higher."""

    floor: Share = 0.0  # what no other tenant's need takes away
    ceiling: Share = 1.0  # the most that it keeps

    def __post_init__(self) -> None:
        """Refuse what crosses."""
        if self.floor > self.ceiling:
            raise ValueError("the floor of a cache quota is above its ceiling")

    @property
    def shares(self) -> tuple[float, float] | None:
        """As the engine is told; None for no quota."""
        return None if self == CacheQuota() else (self.floor, self.ceiling)
