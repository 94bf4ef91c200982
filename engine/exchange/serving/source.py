"""The source of KV blocks for other engines. It finds blocks by tokens, and leases them.

    asked -> [load from lower tiers] -> lease and send blocks on the device -> ... -> end
                     ^                                                  |
                     `---- a request computes more of the prompt  <-----'

With recurrent states, the blocks up to the last stored state are sent immediately, with that state.
But if a request of this engine is still computing the prompt, the blocks and the state are sent
after the request's first token.

A message `Ask` names namespaces by their hashes. Its tokens are compared only with blocks in these
namespaces. Blocks in lower tiers are loaded as if a request of the asker's flow needed them, and
count for that flow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from engine.exchange.serving.events import Asked, Asker, Gone
from engine.exchange.serving.names import NamespaceNames
from engine.exchange.serving.sending import BlocksToSend
from engine.exchange.serving.server import BUSY
from engine.exchange.wire import SALT_BYTES, Ask
from engine.sequences.sequence import Sequence
from prefix_cache.cache import PrefixCache
from prefix_cache.hashing import KEY_BYTES, TokenIds
from prefix_cache.leases.lease import Lease
from prefix_cache.namespace import Namespace, NamespacePath

MOST_ASKS = 64
MOST_S = 60.0  # maximum seconds of an answer, because requests may need the leased blocks
ROOM_S = 1.0  # maximum seconds to wait for room on the device for a load
UNKNOWN_S = 0.5  # maximum seconds to wait for the request that computes the prompt

RunningRequest = Callable[[str], Sequence | None]
"""A function that returns the sequence of a request id, or None if no such request runs here."""


class Askers(Protocol):
    """An interface to the asking engines, implemented by `BlockServer`."""

    def take(self) -> list[Asked | Gone]:
        """Return the events since the last call."""
        ...

    def found(
        self, asker: Asker, blocks: int, first_reads: dict[str, int], *, has_state: bool = False
    ) -> None:
        """Announce that the first `blocks` blocks of the prompt are about to be sent.

        With `has_state`, the units of the recurrent state at their end follow.
        """
        ...

    def units_of_state(self, state_slot: int) -> range:
        """Return the slots of the units that make up a recurrent state."""
        ...

    def send(self, asker: Asker, blocks: BlocksToSend) -> None:
        """Send blocks, in order after earlier blocks.

        The blocks stay leased until the asker is `Gone`.
        """
        ...

    def end(self, asker: Asker, why: str, *, is_all: bool) -> None:
        """Send no more blocks to an asker. `Gone` follows once it has taken all blocks."""
        ...


@dataclass(slots=True, eq=False)
class _Sending:
    asker: Asker
    ask: Ask
    tokens: TokenIds
    since: float
    sent: int
    held: list[Lease] = field(default_factory=list)
    loading: Lease | None = None
    first_reads: dict[str, int] = field(default_factory=dict)
    may_load: bool = True
    committed: int | None = None
    is_over: bool = False
    is_late: bool = False


class Source:
    """The requests of other engines for blocks. Used by one thread only."""

    def __init__(self, cache: PrefixCache, askers: Askers, fingerprint: bytes) -> None:
        self._cache = cache
        self._askers = askers
        self._fingerprint = fingerprint
        self._names = NamespaceNames(cache.tree)
        self._sendings: dict[Asker, _Sending] = {}

    @property
    def is_busy(self) -> bool:
        """True if an engine's request for blocks is not answered completely."""
        return any(not sending.is_over for sending in self._sendings.values())

    @property
    def is_exporting(self) -> bool:
        """True if leases are held for other engines. Each lease is held for a bounded time."""
        return bool(self._sendings)

    def turn(self, running: RunningRequest, now: float) -> None:
        """Handle new requests, send available blocks, and release the leases of gone askers."""
        for news in self._askers.take():
            if isinstance(news, Asked):
                self._begin(news.asker, news.ask, now)
            else:
                self._release(self._sendings.pop(news.asker, None), now)
        for sending in self._sendings.values():
            if not sending.is_over:
                request_id = sending.ask.request_id
                request = None if request_id is None else running(request_id)
                self._advance(sending, request, now)
            if not sending.is_late and now - sending.since > MOST_S:
                sending.is_late = sending.is_over = True
                self._askers.end(sending.asker, "it takes too long", is_all=False)

    def _begin(self, asker: Asker, ask: Ask, now: float) -> None:
        why = self._why_not(ask)
        if why is None and len(self._sendings) >= MOST_ASKS:
            why = BUSY
        if why is not None:
            self._askers.end(asker, why, is_all=False)
            return
        whole = self._cache.capacity.pool().total * self._cache.block_size
        tokens = np.frombuffer(ask.token_ids, "<i4")[:whole].astype(np.int32)
        self._sendings[asker] = _Sending(asker, ask, tokens, now, ask.first)

    def _why_not(self, ask: Ask) -> str | None:
        if ask.fingerprint != self._fingerprint:
            return "it serves another model, or with other settings"
        whole = len(ask.token_ids) % (4 * self._cache.block_size) == 0
        starts = [start for start, _ in ask.spans]
        if not whole or starts[:1] != [0] or starts != sorted(set(starts)):
            return "the ask is none"
        if len(ask.salt) != SALT_BYTES or not 0 <= ask.first < 2**31 or ask.window < 1:
            return "the ask is none"
        return None

    def _advance(self, sending: _Sending, request: Sequence | None, now: float) -> None:
        awaits = self._awaits(sending, request, now)
        committed = _committed(request)
        if awaits and request is not None and committed == sending.committed:
            return
        if request is not None:
            sending.committed = committed
        if awaits and self._cache.tree.needs_state:
            return
        self._look(sending, now)
        if not (awaits or sending.may_load or sending.loading):
            sending.is_over = True
            self._askers.end(sending.asker, "", is_all=True)

    def _awaits(self, sending: _Sending, request: Sequence | None, now: float) -> bool:
        if sending.ask.request_id is None:
            return False
        if request is None:
            return sending.committed is None and now - sending.since < UNKNOWN_S
        wanted = len(sending.tokens) // self._cache.block_size
        return request.num_output == 0 and sending.sent < wanted

    def _look(self, sending: _Sending, now: float) -> None:
        named = self._names.path(sending.ask.spans)
        if named is None:
            sending.may_load = False
            return
        path, end = named
        tokens = sending.tokens
        if end is not None:
            tokens = tokens[: end * self._cache.block_size]
        self._load(sending, path, tokens, now)
        if not self._cache.tree.needs_state:
            self._send(sending, path, tokens, now)
        elif not (sending.may_load or sending.loading):
            self._send_with_state(sending, path, tokens, now)

    def _load(self, sending: _Sending, path: NamespacePath, tokens: TokenIds, now: float) -> None:
        found, lease = self._cache.tree.match(path, tokens).found, sending.loading
        if lease is not None:
            if lease.failed or (lease.ready and not found.coming):
                sending.loading = None
                sending.held.append(lease)
        elif sending.may_load:
            is_lower = found.total > max(found.device, sending.sent) or (
                found.state is not None and found.total > sending.sent
            )
            sending.may_load = is_lower and now - sending.since < ROOM_S
            if sending.may_load:
                self._begin_load(sending, path, tokens[: found.total * self._cache.block_size], now)

    def _begin_load(
        self, sending: _Sending, path: NamespacePath, tokens: TokenIds, now: float
    ) -> None:
        longer = np.append(tokens, np.int32(0))
        lease = self._cache.acquire(path, longer, owner=sending.ask.flow, now=now)
        if lease is not None:
            sending.may_load = False
            sending.loading, sending.first_reads = lease, lease.first_reads

    def _send(self, sending: _Sending, path: NamespacePath, tokens: TokenIds, now: float) -> None:
        if self._cache.tree.match(path, tokens).found.device <= sending.sent:
            return
        lease = self._cache.read(path, tokens, owner=sending.ask.flow, now=now)
        if lease is None:
            return
        sending.held.append(lease)
        blocks = _blocks(lease, path, tokens, sending.sent, self._cache.block_size)
        sending.sent = lease.num_blocks
        first_reads = dict(Counter(sending.first_reads) + Counter(lease.first_reads))
        sending.first_reads = {}
        self._askers.found(sending.asker, lease.num_blocks, first_reads)
        self._askers.send(sending.asker, blocks)

    def _send_with_state(
        self, sending: _Sending, path: NamespacePath, tokens: TokenIds, now: float
    ) -> None:
        lease = self._cache.read(path, tokens, owner=sending.ask.flow, now=now, with_state=True)
        if lease is None or lease.states is None:
            return
        sending.held.append(lease)
        end = lease.num_blocks
        if end <= sending.sent:
            return
        blocks = _blocks(lease, path, tokens, sending.sent, self._cache.block_size)
        first_reads = dict(Counter(sending.first_reads) + Counter(lease.first_reads))
        self._askers.found(sending.asker, end, first_reads, has_state=True)
        self._askers.send(sending.asker, blocks)
        units = self._askers.units_of_state(lease.states.at.slot)
        self._askers.send(sending.asker, _units(blocks, end, path.at(end - 1), units))

    def _release(self, sending: _Sending | None, now: float) -> None:
        if sending is None:
            return
        if sending.loading is not None:
            sending.held.append(sending.loading)
        for lease in sending.held:
            self._cache.release(lease, now=now)


def _committed(request: Sequence | None) -> int:
    return 0 if request is None or request.lease is None else request.lease.num_shared


def _blocks(
    lease: Lease, path: NamespacePath, tokens: TokenIds, first: int, size: int
) -> BlocksToSend:
    keys = b"".join(node.edge.keys for node in reversed(lease.node.way_up()))
    end = lease.num_blocks
    return BlocksToSend(
        first=first,
        path=path,
        keys=keys[first * KEY_BYTES : end * KEY_BYTES],
        token_ids=tokens[first * size : end * size].astype("<i4", copy=False).tobytes(),
        slots=lease.block_ids[first:end].astype("<i4", copy=False).tobytes(),
    )


def _units(blocks: BlocksToSend, end: int, namespace: Namespace, slots: range) -> BlocksToSend:
    """Return the units of the recurrent state at block `end`.

    Each unit is authenticated with the key and the tokens of the last block.
    """
    last = blocks.place(len(blocks) - 1, len(blocks))
    return BlocksToSend(
        first=end,
        path=NamespacePath.single(namespace),
        keys=last.keys * len(slots),
        token_ids=last.token_ids * len(slots),
        slots=np.array(slots, "<i4").tobytes(),
    )
