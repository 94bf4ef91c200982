"""Events of an engine's prefix cache for gateways: its blocks, and their tiers.

    Subscribe ->
             <- CacheEvents 0: Cleared, Added ...       a snapshot, in pieces, and between its
             <- CacheEvents 1: Added, Moved, Removed    pieces what has changed since
    EventsTaken 1 ->
             <- CacheEvents 2 ...

A block is named by its key (`prefix_cache.hashing`), which is chained over secret namespaces: it
says nothing of tenants, and no token travels. A gateway that does not take what it is sent is sent
no more; once it has caught up, it gets a new snapshot. So does one that subscribes again.

Knows: field names, types, order. Does not know: who listens (`engine.queries.cache_feed`), or what
for.
"""

from __future__ import annotations

from typing import Literal

import msgspec

TierName = Literal["device", "host", "disk"]


class Added(msgspec.Struct, frozen=True, array_like=True, tag="added"):
    """Blocks added to the tree; `tier` is the fastest that has a copy."""

    tier: TierName
    keys: bytes  # 16 bytes a block


class Moved(msgspec.Struct, frozen=True, array_like=True, tag="moved"):
    """Blocks of the tree whose fastest copy is now in another tier."""

    tier: TierName
    keys: bytes


class Removed(msgspec.Struct, frozen=True, array_like=True, tag="removed"):
    """Blocks removed from the tree."""

    keys: bytes


class Cleared(msgspec.Struct, frozen=True, array_like=True, tag="cleared"):
    """Start of a snapshot, or an empty tree: earlier events are void."""


CacheChange = Added | Moved | Removed | Cleared


class CacheEvents(msgspec.Struct, frozen=True, kw_only=True, tag="cache_events"):
    """Changes of the cache in order of time.

    Numbered from 0 for each connection. After a gap only one that begins with `Cleared` is of use.
    """

    number: int
    changes: tuple[CacheChange, ...]


class Subscribe(msgspec.Struct, frozen=True, tag="subscribe"):
    """Request for a snapshot of the cache, and its later changes. May be repeated."""


class EventsTaken(msgspec.Struct, frozen=True, tag="events_taken"):
    """Receipt of all `CacheEvents` up to this number: the engine may send more."""

    number: int
