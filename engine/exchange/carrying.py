"""The export of prefixes from this engine's device, and the import into it.

    begin -> [make room] -> ready: write, write, ... -> end: in the tree, leased -> released

An import leases KV blocks as a request does. Blocks that are already in the tree stay unchanged.
The other blocks are put in the tree at the import's end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from engine.errors import EngineError, InvalidRequest, NoRoomToPin, NotCarried
from engine.exchange.units import Rows, UnitMemory
from engine.link.carrying_messages import (
    BeginImport,
    Carried,
    Carrying,
    EndImport,
    ImportState,
    PrefixUnits,
    ReadPrefix,
    WriteImport,
)
from engine.link.codec import DecodeError, unpack_token_ids
from engine.sequences.pins import Pins
from prefix_cache.cache import PrefixCache
from prefix_cache.eviction.shares import PUBLISHED
from prefix_cache.hashing import KEY_BYTES, TokenIds
from prefix_cache.leases.lease import Lease
from prefix_cache.namespace import NAMESPACE_BYTES, Namespace, NamespacePath

MOST_IMPORTS = 2  # maximum number of concurrent imports; each holds device blocks
IDLE_S = 60.0  # seconds without a query after which an import is dropped
MOST_BYTES = 16 << 20  # maximum bytes of one read; steps wait for a read
HELD_S = 30.0  # seconds for which imported blocks are held until they are pinned


@dataclass(slots=True, eq=False)
class _Import:
    path: NamespacePath
    tokens: TokenIds
    block_keys: bytes
    until: float
    lease: Lease | None = None
    state_slot: int | None = None
    is_over: bool = False
    written: set[int] = field(default_factory=set)


class CarriedPrefixes:
    """The exports and the imports of one engine. Used by one thread only."""

    def __init__(self, cache: PrefixCache, pins: Pins, units: UnitMemory | None) -> None:
        """Read and write prefixes through `units`. Without `units`, refuse all queries."""
        self._cache = cache
        self._pins = pins
        self._units = units
        self._imports: dict[str, _Import] = {}

    @property
    def is_holding(self) -> bool:
        """True if an import holds blocks. It holds them for a bounded time."""
        return any(one.lease is not None for one in self._imports.values())

    def answer(self, query: Carrying, now: float) -> Carried:
        """Answer a query that reads or imports a prefix."""
        kind = PrefixUnits if isinstance(query, ReadPrefix) else ImportState
        try:
            match query:
                case ReadPrefix():
                    return self._read(query)
                case BeginImport():
                    return self._begin(query, now)
                case WriteImport():
                    return self._write(query, now)
                case EndImport():
                    return self._end(query, now)
        except EngineError as error:
            return kind(query_id=query.query_id, code=error.code, message=error.message)

    def drop_late(self, now: float) -> None:
        """Release the blocks of imports that are idle or have ended."""
        for import_id, one in list(self._imports.items()):
            if now > one.until:
                self._drop(import_id, now)

    def _drop_pinned(self, now: float) -> None:
        """Release the blocks of ended imports that are pinned by now."""
        pinned = self._pins.by_node()
        for import_id, one in list(self._imports.items()):
            if one.is_over and one.lease is not None and one.lease.node in pinned:
                self._drop(import_id, now)

    def _memory(self) -> UnitMemory:
        if self._units is None:
            raise NotCarried("this engine has no memory to carry prefixes from, or to")
        return self._units

    def _read(self, query: ReadPrefix) -> PrefixUnits:
        units, lease = self._memory(), self._pins.lease_of(query.pin_id)
        if lease is None:
            raise NotCarried("the prefix is not pinned, or not yet")
        if query.count > 1 and query.count * units.unit_bytes > MOST_BYTES:
            raise InvalidRequest(f"at most {MOST_BYTES} bytes are read at once, or one unit")
        state = lease.states.at.slot if units.state_units and lease.states is not None else None
        rows = _rows(lease, state, query.first, query.count, units.state_units)
        return PrefixUnits(
            query_id=query.query_id,
            unit_bytes=units.unit_bytes,
            blocks=lease.num_blocks,
            state_units=units.state_units,
            payload=units.read(*rows) if query.count else b"",
        )

    def _begin(self, query: BeginImport, now: float) -> ImportState:
        units = self._memory()
        one = self._imports.get(query.import_id)
        if one is None:
            one = self._entered(query, units, now)
        one.until = now + IDLE_S
        if one.lease is None:
            self._lease(one, now)
        if one.lease is not None and one.lease.failed:
            self._drop(query.import_id, now)
            raise NotCarried("blocks of it that were on disk are damaged: begin again")
        is_ready = one.lease is not None and one.lease.ready
        return ImportState(query_id=query.query_id, is_ready=is_ready)

    def _entered(self, query: BeginImport, units: UnitMemory, now: float) -> _Import:
        if (query.unit_bytes, query.state_units) != (units.unit_bytes, units.state_units):
            raise NotCarried("its blocks have another size")
        self._drop_pinned(now)
        if len(self._imports) >= MOST_IMPORTS:
            raise NoRoomToPin(f"{MOST_IMPORTS} prefixes are being imported already")
        try:
            tokens = unpack_token_ids(query.token_ids)
        except DecodeError as error:
            raise InvalidRequest(str(error)) from error
        size = self._cache.block_size
        if not len(tokens) or len(tokens) % size or len(query.namespace) != NAMESPACE_BYTES:
            raise InvalidRequest("a prefix is whole blocks, at least one, of a namespace")
        if len(query.block_keys) != len(tokens) // size * KEY_BYTES:
            raise InvalidRequest("a prefix has a key for every block")
        self._pins.check_room(len(tokens) // size)
        path = NamespacePath.single(Namespace(query.namespace))
        one = self._imports[query.import_id] = _Import(path, tokens, query.block_keys, now)
        return one

    def _lease(self, one: _Import, now: float) -> None:
        longer = np.append(one.tokens, np.int32(0))
        one.lease = self._cache.acquire(one.path, longer, owner=PUBLISHED, now=now)
        if one.lease is None:
            return
        self._cache.postpone(one.lease)  # do not copy part of a cached block
        states = one.lease.states
        if states is not None and states.at.position < len(one.tokens):
            one.state_slot = states.next_out()

    def _write(self, query: WriteImport, now: float) -> ImportState:
        units, one = self._memory(), self._found(query.import_id)
        lease = one.lease
        count, rest = divmod(len(query.payload), units.unit_bytes)
        if lease is None or not lease.ready or rest or not count or one.is_over:
            raise InvalidRequest("no whole units, or the import is not ready for them")
        blocks, states = _rows(
            lease, one.state_slot, query.first, count, units.state_units, end=self._end_of(one)
        )
        one.until = now + IDLE_S
        one.written.update(range(query.first, query.first + count))
        shared = max(min(lease.num_shared - query.first, len(blocks)), 0)
        kept = memoryview(query.payload)[shared * units.unit_bytes :]
        if one.state_slot is None:
            kept = kept[: (len(blocks) - shared) * units.unit_bytes]
        if len(kept):
            units.write(blocks[shared:], states, kept)
        return ImportState(query_id=query.query_id)

    def _end(self, query: EndImport, now: float) -> ImportState:
        units, one = self._memory(), self._found(query.import_id)
        if not query.is_kept:
            self._drop(query.import_id, now)
        elif not one.is_over:
            if len(one.written) != self._end_of(one) + units.state_units or one.lease is None:
                raise InvalidRequest("not all units of the prefix are written")
            self._commit(one, one.lease, now)
            one.is_over, one.until = True, now + HELD_S
        return ImportState(query_id=query.query_id)

    def _commit(self, one: _Import, lease: Lease, now: float) -> None:
        end = len(one.tokens)
        if one.state_slot is not None:
            self._cache.states.want(lease, [end])
            self._cache.states.launched(lease, end, one.state_slot)
        self._cache.commit(lease, one.tokens, end, one.block_keys, now=now, is_written=False)
        if one.state_slot is not None and lease.node.checkpoint is None:
            raise NoRoomToPin("there is no room for the prefix's recurrent state")

    def _found(self, import_id: str) -> _Import:
        one = self._imports.get(import_id)
        if one is None:
            raise NotCarried("no such import: it was dropped, or never begun")
        return one

    def _end_of(self, one: _Import) -> int:
        return len(one.tokens) // self._cache.block_size

    def _drop(self, import_id: str, now: float) -> None:
        lease = self._imports.pop(import_id).lease
        if lease is not None:
            self._cache.release(lease, now=now)


def _rows(
    lease: Lease,
    state: int | None,
    first: int,
    count: int,
    state_units: int,
    end: int | None = None,
) -> tuple[Rows, Rows]:
    """Return the slots of the requested blocks, and the rows of the requested units of the state.

    `end` is the prefix's number of blocks, by default the lease's. Raises InvalidRequest if the
    prefix does not have the units.
    """
    blocks = lease.num_blocks if end is None else end
    if first < 0 or count < 0 or first + count > blocks + state_units:
        raise InvalidRequest(f"the prefix has {blocks} blocks and {state_units} units of a state")
    last = first + count
    slots = lease.blocks[min(first, blocks) : min(last, blocks)].astype(np.int64)
    start = 0 if state is None else state * state_units
    begin, stop = max(first - blocks, 0), max(last - blocks, 0)
    rows = np.arange(start + begin, start + stop, dtype=np.int64)
    return slots, rows if state is not None else rows[:0]
