"""The handling of a fetch's messages, which copies arriving blocks into their slots.

    transport  message and its handling                                   outcome

    bytes      `Block`: decrypted into its slot                           the block has arrived
    by slots   `Slots`: copied from the neighbour's pool, `Taken` is sent the blocks are copied
               `Still`: the neighbour kept them until the copy ended      the blocks have arrived

While the blocks of one `Slots` message are copied, the next message is handled. Blocks come in
order. A block that fails authentication or is out of order ends the fetch. Blocks that arrived
before stay valid.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from engine.exchange.block_memory import BlockWriter
from engine.exchange.fetching.fetch import Fetch
from engine.exchange.peer_pool import CannotOpen, PeerPool, PeerPools
from engine.exchange.seal import NotSound, Seal, SealedPlace
from engine.exchange.wire import SLOT_BYTES, Block, Ended, Found, FromSource, Slots, Still
from engine.link.address import is_tcp
from storage.copies import CopyEvent
from storage.errors import CopyFailed

MOST_COPIES = 2  # maximum `Slots` messages being copied; closing a fetch waits for them
NOT_SOUND = "a block is not what was asked for"


class Arriving:
    """A fetch whose blocks are arriving. Used by one thread only."""

    def __init__(
        self,
        fetch: Fetch,
        fingerprint: bytes,
        salt: bytes,
        writer: BlockWriter,
        pools: PeerPools | None,
    ) -> None:
        self.fetch = fetch
        self.taken = fetch.arrived
        self._begun = fetch.arrived
        # The end of the wanted blocks. With recurrent states, the message `Found` sets this end.
        self._end = fetch.wanted.end
        self._copies: deque[tuple[CopyEvent, int]] = deque()
        self._fingerprint, self._salt = fingerprint, salt
        self._writer = writer
        self._pools = pools
        self._seal: Seal | None = None
        self._pool: PeerPool | None = None

    def take(self, message: FromSource, payload: memoryview | None) -> None:
        """Apply a message of the sender. The last message ends the fetch."""
        try:
            self._apply(message, payload)
        except NotSound:
            self.fetch.end(NOT_SOUND)
        except (CannotOpen, CopyFailed) as error:
            self.fetch.end(str(error))
        if self.fetch.arrived >= self._end:
            self.fetch.end("")

    def settle(self) -> bool:
        """Wait for the oldest running copies. Return False if no copy is running."""
        if not self._copies:
            return False
        copied, end = self._copies.popleft()
        copied.synchronize()
        self.taken = end
        return True

    def _apply(self, message: FromSource, payload: memoryview | None) -> None:
        match message:
            case Found():
                self._begin(message)
            case Block():
                self._open(message.position, payload)
            case Slots():
                self._copy(message)
            case Still() if self._pool is not None:
                self.fetch.arrived = max(self.fetch.arrived, min(message.blocks, self.taken))
            case Ended():
                self.fetch.end("" if message.is_all else f"refused: {message.why}")

    def _begin(self, found: Found) -> None:
        units, wanted = found.state_units, self.fetch.wanted
        if units != len(wanted.state_units) or (self._seal is not None and units):
            raise NotSound
        if units:
            if found.pool is not None or not wanted.first < found.blocks <= wanted.end:
                raise NotSound
            self._end = found.blocks
        counts = found.first_reads.values()
        if min(counts, default=1) < 1 or sum(counts) > self.fetch.wanted.end:
            raise NotSound
        for label, blocks in found.first_reads.items():
            self.fetch.first_reads[label] = self.fetch.first_reads.get(label, 0) + blocks
        if self._seal is None:
            self._seal = Seal(self._fingerprint, self._salt, found.salt)
            where = self.fetch.wanted.address
            self.fetch.way = "tcp" if is_tcp(where) else "socket"
            if found.pool is not None and self._pools is not None:
                self._pool = self._pools.open(where, found.pool)
                self.fetch.way = "device"

    def _open(self, position: int, payload: memoryview | None) -> None:
        fetch, wanted = self.fetch, self.fetch.wanted
        if self._seal is None or payload is None or position != self._begun:
            raise NotSound
        last = self._end + len(wanted.state_units)
        if self._pool is not None or position >= last:
            raise NotSound
        slot, place = self._target(position)
        with fetch.lock:
            if fetch.is_closed:
                return
            into = self._writer.buffer(slot)
            self._seal.open(place, payload, into)
            self._writer.flush()
        self.taken = self._begun = position + 1
        if not wanted.state_units:
            fetch.arrived = position + 1
        elif position + 1 == last:  # blocks are useless until the state has arrived
            fetch.arrived = self._end

    def _target(self, position: int) -> tuple[int, SealedPlace]:
        wanted, unit = self.fetch.wanted, position - self._end
        if unit < 0:
            return int(wanted.block_ids[position]), self._place(position, position + 1)
        place = wanted.place_of_unit(self._end, unit)
        if place is None:
            raise NotSound
        return wanted.state_units[unit], place

    def _copy(self, message: Slots) -> None:
        fetch, wanted = self.fetch, self.fetch.wanted
        if self._seal is None or self._pool is None or message.first != self._begun:
            raise NotSound
        if len(message.slots) % SLOT_BYTES:
            raise NotSound
        slots = np.frombuffer(message.slots, "<i4").astype(np.int64)
        end = message.first + len(slots)
        if not len(slots) or end > wanted.end:
            raise NotSound
        self._seal.check_slots(self._place(message.first, end), message.slots, message.seal)
        while len(self._copies) >= MOST_COPIES:
            self.settle()
        with fetch.lock:
            if fetch.is_closed:
                return
            targets = wanted.block_ids[message.first : end].astype(np.int64)
            fetch.writing = self._pool.copy(slots, targets)
        self._copies.append((fetch.writing, end))
        self._begun = end

    def _place(self, start: int, end: int) -> SealedPlace:
        place = self.fetch.wanted.place(start, end)
        if place is None:
            raise NotSound
        return place
