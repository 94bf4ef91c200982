"""The events of an engine's prefix cache, sent to gateways: KV blocks added, moved, removed.

    Subscribe ->
             <- CacheEvents 0: Cleared, Added ...       a snapshot in pieces; changes may come
             <- CacheEvents 1: Added, Moved, Removed    between its pieces
    EventsTaken 1 ->
             <- CacheEvents 2 ...

A block is named by its key (`prefix_cache.hashing`), a hash that includes a secret namespace. A key
does not reveal the tenant, and no tokens are sent. A gateway that does not confirm its events gets
no more. When it has confirmed them, or when it subscribes again, it gets a new snapshot.

Elsewhere: the list of subscribed gateways (`engine.queries.cache_feed`).
"""

from __future__ import annotations

from typing import Literal

import msgspec

TierName = Literal["device", "host", "disk"]


class Added(msgspec.Struct, frozen=True, array_like=True, tag="added"):
    """An event: KV blocks were added to the tree. `tier` is the fastest tier with a copy."""

    tier: TierName
    keys: bytes  # the blocks' keys, 16 bytes each


class Moved(msgspec.Struct, frozen=True, array_like=True, tag="moved"):
    """An event: the fastest copy of KV blocks is now in another tier."""

    tier: TierName
    keys: bytes


class Removed(msgspec.Struct, frozen=True, array_like=True, tag="removed"):
    """An event: KV blocks were removed from the tree."""

    keys: bytes


class Cleared(msgspec.Struct, frozen=True, array_like=True, tag="cleared"):
    """An event that cancels all earlier events: a snapshot starts, or the tree is empty."""


CacheChange = Added | Moved | Removed | Cleared


class CacheEvents(msgspec.Struct, frozen=True, kw_only=True, tag="cache_events"):
    """The changes of the cache in order of time.

    Messages are numbered from 0 on each connection. After a gap in the numbers, only a message that
    begins with `Cleared` may be applied.
    """

    number: int
    changes: tuple[CacheChange, ...]


class Subscribe(msgspec.Struct, frozen=True, tag="subscribe"):
    """A request for a snapshot of the cache, and then for its changes. May be repeated."""


class EventsTaken(msgspec.Struct, frozen=True, tag="events_taken"):
    """A confirmation of all `CacheEvents` up to `number`, so the engine may send more."""

    number: int
