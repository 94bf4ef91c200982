"""The views of records: fields copied from a record by name, and fields computed from it."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from engine.link.stats.tier_stats import StateTier, TierTokens

V = TypeVar("V", bound=msgspec.Struct)


def view_of(kind: type[V], *records: msgspec.Struct, **computed: Any) -> V:
    """Make a `kind` from the fields that it shares with `records` and the `computed` fields."""
    common = {
        name: getattr(record, name)
        for record in records
        for name in record.__struct_fields__
        if name in kind.__struct_fields__
    }
    return kind(**(common | computed))


class TokensByTier(msgspec.Struct, frozen=True):
    """The number of tokens in, or read from, each cache tier.

    `state` is the tier of the recurrent state at the tokens' end, if that tier has no tokens.
    """

    device: int
    host: int
    disk: int
    state: StateTier | UnsetType = UNSET

    @classmethod
    def of(cls, tiers: TierTokens, state: StateTier | None = None) -> TokensByTier:
        """Convert the engine's counts by tier."""
        return cls(tiers.device, tiers.host, tiers.disk, state or UNSET)
