"""The pinned prefixes. Each is computed once, then leased until it is unpinned.

    Pin --all its blocks are there--> pinned --Unpin--> forgotten
     |                                 ^  |
     `--> warming: by a sequence     --'  `-- flushed or lost: warming again
          of batch priority

To compute (warm) a prefix, an ordinary sequence of the flow `published` is run, and its sampled
token is dropped. When the sequence ends, the pin leases the blocks before another sequence can take
them. A flush drops pinned blocks like all other blocks. The prefix is then warmed again.

A block that belongs to several pins counts for each of them. The pool always keeps enough blocks
for a request of the maximum length.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engine.errors import (
    EngineError,
    EngineFailure,
    InvalidRequest,
    NoRoomToPin,
    PinTooLarge,
    RequestRefused,
    error_from_code,
)
from engine.link.codec import DecodeError, unpack_token_ids
from engine.link.event_messages import Event, Failed, Finished
from engine.link.messages import Generate, SamplingParams
from engine.link.query_messages import Pin, Pinned
from engine.link.stats.flow_stats import PinStats
from prefix_cache.cache import PrefixCache
from prefix_cache.eviction.shares import PUBLISHED
from prefix_cache.hashing import TokenIds
from prefix_cache.leases.lease import Lease
from prefix_cache.namespace import NAMESPACE_BYTES, Namespace, NamespacePath
from prefix_cache.tree.node import Node

OURSELVES = b""  # name of the engine as its own client; no connection has an empty name
PINNED_PART = 2  # at most 1 / PINNED_PART of the device's blocks may be pinned
TRIES = 3  # how often at most a prefix is warmed if it is evicted each time
AWAITED_S = 5.0  # seconds for which fetched blocks are leased until they are pinned
RETRY_S = 1.0  # seconds before a failed warming is repeated

PinReply = tuple[bytes, Pinned]  # (client that sent the pin, reply)

_WARMING = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)


@dataclass(slots=True, eq=False)
class _PinnedEntry:
    pin: Pin
    path: NamespacePath
    token_ids: npt.NDArray[np.int32]
    num_blocks: int
    lease: Lease | None = None
    request_id: str | None = None
    not_before: float = 0.0
    tries: int = 0
    waiting: list[tuple[bytes, str]] = field(default_factory=list)


class Pins:
    """The pinned prefixes of one engine. Used by one thread only."""

    def __init__(self, cache: PrefixCache, most_blocks: int) -> None:
        self._cache = cache
        self._most_blocks = most_blocks
        self._entries: dict[str, _PinnedEntry] = {}
        self._numbers = itertools.count()
        self._awaited: dict[bytes, tuple[float, Lease]] = {}

    def stats(self) -> PinStats:
        """Return the counters of pinned prefixes."""
        pinned = {
            name: entry.num_blocks
            for name, entry in self._entries.items()
            if entry.lease is not None and entry.lease.node.attached
        }
        return PinStats(most=self._most_blocks, claimed=self._claimed(), pinned=pinned)

    def by_node(self) -> dict[Node, list[str]]:
        """Return the ids of pinned prefixes by their nodes."""
        found: dict[Node, list[str]] = {}
        for name, entry in self._entries.items():
            if entry.lease is not None and entry.lease.node.attached:
                for node in entry.lease.node.way_up():
                    found.setdefault(node, []).append(name)
        return found

    def lease_of(self, pin_id: str) -> Lease | None:
        """Return the lease of a pinned prefix, or None if its blocks are not on the device."""
        entry = self._entries.get(pin_id)
        lease = None if entry is None else entry.lease
        return lease if lease is not None and lease.node.attached else None

    def check_room(self, num_blocks: int) -> None:
        """Raise PinTooLarge or NoRoomToPin if `num_blocks` more blocks cannot be pinned."""
        if num_blocks > self._most_blocks:
            raise PinTooLarge(
                f"the prefix has {num_blocks} blocks; {self._most_blocks} may be pinned"
            )
        if self._claimed() + num_blocks > self._most_blocks:
            raise NoRoomToPin(
                f"{self._claimed()} of the {self._most_blocks} blocks that may be pinned are; "
                f"the prefix has {num_blocks}"
            )

    def ask(self, client: bytes, pin: Pin, now: float) -> list[PinReply]:
        """Register a pin. Return the replies that can be sent now.

        A reply can be sent when the blocks of its pin are cached.
        """
        try:
            entry = self._entries.get(pin.pin_id) or self._enter(pin)
        except EngineError as error:
            return [_refusal(client, pin.query_id, error)]
        entry.waiting.append((client, pin.query_id))
        self._drop_awaited(now)
        return self._try_to_lease(entry, now)

    def await_pin(self, path: NamespacePath, token_ids: TokenIds, keys: bytes, now: float) -> None:
        """Lease the fetched blocks of a prefix for a moment, until the gateway pins the prefix.

        With partitioned tiers, published prefixes would otherwise not stay in the cache.
        """
        lease = self._cache.read(path, token_ids, owner=PUBLISHED, now=now)
        if lease is None:
            return
        before = self._awaited.pop(keys, None)
        if before is not None:
            self._cache.release(before[1], now=now)
        self._awaited[keys] = (now + AWAITED_S, lease)
        self._drop_awaited(now)

    def let_go(self, pin_id: str, now: float) -> tuple[int, str | None, list[PinReply]]:
        """Unpin a prefix.

        Return the prefix's number of blocks, the id of the request that is computing it or None,
        and the replies to waiting clients.
        """
        entry = self._entries.pop(pin_id, None)
        if entry is None:
            return 0, None, []
        if entry.lease is not None:
            self._cache.release(entry.lease, now=now)
        gone = RequestRefused("the prefix was unpinned meanwhile")
        return entry.num_blocks, entry.request_id, _tell(entry, gone)

    def due(self, now: float) -> list[Generate]:
        """Return the requests to start now. They warm pinned prefixes that have no lease."""
        self._drop_lost(now)
        self._drop_awaited(now)
        found = [
            entry
            for entry in self._entries.values()
            if entry.lease is None and entry.request_id is None and entry.not_before <= now
        ]
        return [self._begin(entry) for entry in found]

    def heard(self, event: Event, now: float) -> list[PinReply]:
        """Handle an event of a sequence that warms a prefix. Return the replies to send now."""
        if not isinstance(event, Finished | Failed):
            return []
        warming = (one for one in self._entries.values() if one.request_id == event.request_id)
        entry = next(warming, None)
        if entry is None:
            return []  # the prefix was unpinned in the meantime
        entry.request_id = None
        if isinstance(event, Failed):
            error = error_from_code(event.code, event.message, event.retry_after_s)
            return self._put_off(entry, error, now)
        answers = self._try_to_lease(entry, now)
        if entry.lease is None and entry.tries >= TRIES:
            return self._put_off(entry, EngineFailure("the prefix does not stay"), now)
        return answers

    def _claimed(self) -> int:
        return sum(entry.num_blocks for entry in self._entries.values())

    def _enter(self, pin: Pin) -> _PinnedEntry:
        entry = _entry(pin, self._cache.block_size)
        self.check_room(entry.num_blocks)
        self._entries[pin.pin_id] = entry
        return entry

    def _try_to_lease(self, entry: _PinnedEntry, now: float) -> list[PinReply]:
        if entry.lease is None and entry.request_id is None:
            entry.lease = self._cache.pin(entry.path, entry.token_ids, owner=PUBLISHED, now=now)
        if entry.lease is None:
            return []
        entry.tries = 0
        awaited = self._awaited.pop(entry.pin.block_keys, None)
        if awaited is not None:
            self._cache.release(awaited[1], now=now)
        return _tell(entry, None)

    def _begin(self, entry: _PinnedEntry) -> Generate:
        entry.tries += 1
        entry.request_id = f"{next(self._numbers)}"
        return Generate(
            request_id=entry.request_id,
            token_ids=entry.pin.token_ids,
            namespaces=entry.path.spans,
            block_keys=entry.pin.block_keys,
            flow=PUBLISHED,
            priority="batch",
            sampling=_WARMING,
        )

    def _put_off(self, entry: _PinnedEntry, error: EngineError, now: float) -> list[PinReply]:
        answers = _tell(entry, error)
        if answers:
            del self._entries[entry.pin.pin_id]
        entry.tries, entry.not_before = 0, now + RETRY_S
        return answers

    def _drop_awaited(self, now: float) -> None:
        pinned = {entry.pin.block_keys for entry in self._entries.values()}
        room = self._most_blocks - self._claimed()
        for keys, (until, lease) in list(self._awaited.items()):
            room -= 0 if keys in pinned else lease.num_blocks
            if now > until or room < 0 or not lease.node.attached:
                del self._awaited[keys]
                self._cache.release(lease, now=now)

    def _drop_lost(self, now: float) -> None:
        for entry in self._entries.values():
            if entry.lease is not None and not entry.lease.node.attached:
                self._cache.release(entry.lease, now=now)
                entry.lease = None


def most_pinned(num_blocks: int, longest_request: int) -> int:
    """Return how many of `num_blocks` may be pinned such that `longest_request` remain."""
    return max(0, min(num_blocks // PINNED_PART, num_blocks - longest_request))


def _entry(pin: Pin, block_size: int) -> _PinnedEntry:
    try:
        token_ids = unpack_token_ids(pin.token_ids)
    except DecodeError as error:
        raise InvalidRequest(str(error)) from error
    if not len(token_ids) or len(token_ids) % block_size:
        raise InvalidRequest("a pinned prefix is whole blocks, at least one")
    if len(pin.namespace) != NAMESPACE_BYTES:
        raise InvalidRequest("the namespace has a wrong length")
    path = NamespacePath.single(Namespace(pin.namespace))
    return _PinnedEntry(pin, path, token_ids, len(token_ids) // block_size)


def _tell(entry: _PinnedEntry, error: EngineError | None) -> list[PinReply]:
    waiting, entry.waiting = entry.waiting, []
    if error is not None:
        return [_refusal(client, query_id, error) for client, query_id in waiting]
    blocks = entry.num_blocks
    return [(client, Pinned(query_id=query_id, blocks=blocks)) for client, query_id in waiting]


def _refusal(client: bytes, query_id: str, error: EngineError) -> PinReply:
    refusal = Pinned(
        query_id=query_id,
        blocks=0,
        code=error.code,
        message=error.message,
        retry_after_s=error.retry_after_s,
    )
    return client, refusal
