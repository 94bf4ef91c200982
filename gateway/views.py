"""The views of records: their fields of the same names, and what is computed from them."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from engine.link.stats_messages import TierTokens

V = TypeVar("V", bound=msgspec.Struct)


def view_of(kind: type[V], *records: msgspec.Struct, **computed: Any) -> V:
    """Make a `kind` with the fields that it shares with `records`, and those `computed`."""
    common = {
        name: getattr(record, name)
        for record in records
        for name in record.__struct_fields__
        if name in kind.__struct_fields__
    }
    return kind(**(common | computed))


class TokensByTier(msgspec.Struct, frozen=True):
    """Tokens by the tier of the cache that they lie in, or came from."""

    device: int
    host: int
    disk: int

    @classmethod
    def of(cls, tiers: TierTokens) -> TokensByTier:
        """Count as the engine does."""
        return cls(tiers.device, tiers.host, tiers.disk)
