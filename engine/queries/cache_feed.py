"""The feed of the cache's KV blocks and their changes to subscribed gateways.

    following   an iteration of the loop sends the changes since the last iteration, then the next
                piece of the snapshot, if any is left
    behind      too many messages are unconfirmed, so no changes are sent. An occasional message
                shows whether the gateway is gone. When the gateway has caught up, it follows
                again, beginning with a new snapshot

The number of queued messages for a gateway is therefore bounded. Without subscribers, the cache
does not record changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from engine.link.cache_events import (
    Added,
    CacheChange,
    CacheEvents,
    Cleared,
    EventsTaken,
    Moved,
    Removed,
    Subscribe,
)
from engine.link.gateway_end.cache_subscription import TAKEN_EVERY
from prefix_cache.hashing import KEY_BYTES
from prefix_cache.tree.changes import ChangeLog, Kind, TreeChange
from prefix_cache.tree.snapshot import Snapshot
from prefix_cache.tree.tree import RadixTree

PIECE_BLOCKS = 4096  # number of blocks in a piece of the snapshot
MESSAGE_BYTES = PIECE_BLOCKS * KEY_BYTES  # bytes of keys after which a new message begins
MOST_UNDER_WAY = 4 * TAKEN_EVERY
SIGN_EVERY = 1024  # number of iterations between messages to a gateway that is behind
SNAPSHOT_PACE_S = 0.002  # seconds between two pieces of a snapshot in an idle engine

Send = Callable[[bytes, CacheEvents], bool]


@dataclass(slots=True)
class _Subscriber:
    snapshot: Snapshot | None = None
    is_behind: bool = True  # True if the gateway next needs a new snapshot
    sent: int = 0
    taken: int = 0
    turns: int = 0

    @property
    def can_take(self) -> bool:
        return self.sent - self.taken <= (MOST_UNDER_WAY // 2 if self.is_behind else MOST_UNDER_WAY)

    def fall_behind(self) -> None:
        self.is_behind, self.snapshot, self.turns = True, None, 0


class CacheFeed:
    """The subscribed gateways of one engine. Used by one thread only."""

    def __init__(self, tree: RadixTree) -> None:
        self._tree = tree
        self._subscribers: dict[bytes, _Subscriber] = {}

    @property
    def has_more(self) -> bool:
        """True if more of a snapshot can be sent to a subscriber now."""
        return any(
            one.can_take and (one.is_behind or one.snapshot is not None)
            for one in self._subscribers.values()
        )

    def heard(self, client: bytes, message: Subscribe | EventsTaken) -> None:
        """Handle a gateway's subscription, or its confirmation of events."""
        if isinstance(message, Subscribe):
            one = self._subscribers.setdefault(client, _Subscriber())
            one.fall_behind()
            one.taken = one.sent
            if self._tree.changes is None:
                self._tree.changes = ChangeLog()
        elif client in self._subscribers:
            one = self._subscribers[client]
            one.taken = min(max(one.taken, message.number + 1), one.sent)

    def publish(self, send: Send) -> None:
        """Send every subscriber its new events. `send` returns False if the subscriber is gone."""
        if self._tree.changes is None:
            return
        changes = self._tree.changes.take()
        for client, one in list(self._subscribers.items()):
            if not all(send(client, message) for message in self._news_for(one, changes)):
                del self._subscribers[client]
        if not self._subscribers:
            self._tree.changes = None

    def _news_for(
        self, one: _Subscriber, changes: list[TreeChange] | None
    ) -> Iterator[CacheEvents]:
        has_news = bool(changes) or one.snapshot is not None
        if not one.is_behind and (changes is None or (has_news and not one.can_take)):
            one.fall_behind()
        if one.can_take:
            parts = _in_parts(self._changes_for(one, changes))
        else:
            one.turns += 1
            parts = iter([()] if one.turns % SIGN_EVERY == 0 else [])
        for part in parts:
            yield CacheEvents(number=one.sent, changes=part)
            one.sent += 1

    def _changes_for(
        self, one: _Subscriber, changes: list[TreeChange] | None
    ) -> Iterator[CacheChange]:
        if one.is_behind:
            one.snapshot, one.is_behind = Snapshot(self._tree), False
            yield Cleared()
        else:
            yield from map(_as_message, changes or ())
        if one.snapshot is not None:
            yield from map(_as_message, one.snapshot.take(PIECE_BLOCKS))
            one.snapshot = None if one.snapshot.is_over else one.snapshot


def _as_message(change: TreeChange) -> CacheChange:
    if change.kind is Kind.REMOVED or change.tier is None:
        return Removed(change.keys)
    kind = Added if change.kind is Kind.ADDED else Moved
    return kind(change.tier.value, change.keys)


def _in_parts(changes: Iterable[CacheChange]) -> Iterator[tuple[CacheChange, ...]]:
    part: list[CacheChange] = []
    num_bytes = 0
    for change in changes:
        part.append(change)
        num_bytes += 0 if isinstance(change, Cleared) else len(change.keys)
        if num_bytes >= MESSAGE_BYTES:
            yield tuple(part)
            part, num_bytes = [], 0
    if part:
        yield tuple(part)
