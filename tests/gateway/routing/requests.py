"""Requests and cache events as routers receive them; a block has 16 tokens."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from engine.link.cache_events import Added, CacheChange, CacheEvents, Cleared, TierName
from engine.link.event_messages import Reused, Timing
from engine.link.stats.tier_stats import TierTokens
from gateway.routing.prompt import RoutingRequest

BLOCK = 16


def chained(*contents: object) -> bytes:
    """Return the keys of a chain of blocks with these contents."""
    keys, key = [], b""
    for content in contents:
        key = blake2b(key + repr(content).encode(), digest_size=16).digest()
        keys.append(key)
    return b"".join(keys)


def request(name: str, *contents: object, tail: int = 1, use_cache: bool = True) -> RoutingRequest:
    """Make a request with a prompt of these blocks and `tail` more tokens."""
    tokens = BLOCK * len(contents) + tail
    return RoutingRequest(name, tokens, chained(*contents), bytes(16), use_cache)


def events(*changes: CacheChange, number: int = 0) -> CacheEvents:
    return CacheEvents(number=number, changes=changes)


def cached(*contents: object, tier: TierName = "device") -> CacheEvents:
    """Return a cache event with exactly these blocks."""
    return events(Cleared(), Added(tier, chained(*contents)))


def reused(device: int = 0, host: int = 0, disk: int = 0) -> Reused:
    return Reused(TierTokens(device, host, disk))


def timing(
    *, queue: float = 0.0, load: float = 0.0, prefill: float = 0.0, at: float | None = None
) -> Timing:
    return Timing(queue, 0.0, load, prefill, at=at)


def blocks(count: int, start: int = 0) -> Sequence[int]:
    """Return the contents of blocks."""
    return range(start, start + count)
