"""The KV blocks being sent to one engine: waiting, sent, confirmed.

    waiting ---- as many as the window allows ----> sent ---- the asker confirms ----> taken

If the asker's GPU copies the blocks itself, one message names many blocks. The message is made from
a few slices of bytes, because a loop over the blocks would keep the GPU waiting.
"""

from __future__ import annotations

import secrets
from collections import deque
from dataclasses import dataclass

from engine.exchange.block_memory import BlockReader
from engine.exchange.seal import Seal, SealedPlace
from engine.exchange.wire import (
    SALT_BYTES,
    SLOT_BYTES,
    Ask,
    Block,
    Ended,
    Found,
    FromSource,
    PoolHandle,
    Slots,
)
from prefix_cache.hashing import KEY_BYTES
from prefix_cache.namespace import NamespacePath

# While the asker copies some blocks, it gets the slots of the next blocks. Neither engine then
# waits for the other.
FIRST_SLOTS = 64  # few blocks in the first message, so that copies begin early
SLOTS_AT_ONCE = 256  # many blocks in later messages, because each needs a reply
SLOTS_UNTAKEN = 1024


@dataclass(frozen=True, slots=True)
class BlocksToSend:
    """The successive blocks of a prompt, leased while they are read."""

    first: int
    path: NamespacePath
    keys: bytes  # KEY_BYTES for each block
    token_ids: bytes  # int32, little endian
    slots: bytes  # int32, little endian

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self.slots) // SLOT_BYTES

    def place(self, start: int, end: int) -> SealedPlace:
        """Return the data with which the blocks from `start` up to `end` are authenticated.

        The blocks share a namespace.
        """
        step = len(self.token_ids) // len(self)
        return SealedPlace(
            self.first + start,
            self.path.at(self.first + start),
            self.keys[start * KEY_BYTES : end * KEY_BYTES],
            self.token_ids[start * step : end * step],
        )

    def slots_of(self, start: int, end: int) -> bytes:
        """Return the slots of the blocks from `start` up to `end`."""
        return self.slots[start * SLOT_BYTES : end * SLOT_BYTES]

    def alike(self, start: int) -> int:
        """Return the end of the run of blocks from `start` on that have the same namespace."""
        _, end = self.path.span_at(self.first + start)
        return len(self) if end is None else min(end - self.first, len(self))


class Sending:
    """The answer to one asking engine. Used by one thread only."""

    def __init__(self, ask: Ask, now: float, pool: PoolHandle | None, *, window: int) -> None:
        """Let the asker copy blocks from `pool`, or send the blocks' bytes without `pool`.

        `now` is in seconds. At most `window` blocks may be under way.
        """
        self.heard = now
        self.end: Ended | None = None
        self._number = ask.number
        self._window = min(max(ask.window, 1), window) if pool is None else SLOTS_UNTAKEN
        self._pool = pool
        self._salt = secrets.token_bytes(SALT_BYTES)
        self._seal = Seal(ask.fingerprint, ask.salt, self._salt)
        self._waiting: deque[BlocksToSend] = deque()
        self._ahead = 0
        self._sent = self._taken = self._first = ask.first

    @property
    def is_over(self) -> bool:
        """True if `Ended` may be sent: all blocks are confirmed, or no more will be sent."""
        if self.end is None or self._waiting:
            return False
        return not self.end.is_all or self._taken == self._sent

    def found(self, blocks: int, first_reads: dict[str, int], state_units: int = 0) -> Found:
        """Make the message which says that the prompt's first `blocks` blocks were found."""
        return Found(
            number=self._number,
            salt=self._salt,
            blocks=blocks,
            first_reads=first_reads,
            pool=self._pool,
            state_units=state_units,
        )

    def add(self, blocks: BlocksToSend) -> None:
        """Add blocks, which are sent after all blocks added before."""
        if blocks:
            self._waiting.append(blocks)

    def stop(self, end: Ended) -> None:
        """Record that no more blocks come. Drop the unsent blocks unless `end.is_all`."""
        self.end = end
        if not end.is_all:
            self._waiting.clear()
            self._ahead = 0

    def take(self, blocks: int) -> int:
        """Record that the asker has the prompt's first `blocks` blocks. Return that number."""
        self._taken = min(max(self._taken, blocks), self._sent)
        return self._taken

    def next(self, reader: BlockReader) -> tuple[FromSource, bytearray | None, int] | None:
        """Return the next message, its payload and its number of blocks, or None if none is due.

        The same message is returned again until `done` is called.
        """
        room = self._window - (self._sent - self._taken)
        if room < 1 or not self._waiting:
            return None
        blocks, start = self._waiting[0], self._ahead
        if self._pool is None:
            place = blocks.place(start, start + 1)
            slot = int.from_bytes(blocks.slots_of(start, start + 1), "little")
            payload = self._seal.seal(place, reader.read(slot))
            return Block(self._number, place.position), payload, 1
        most = FIRST_SLOTS if self._sent == self._first else SLOTS_AT_ONCE
        end = min(blocks.alike(start), start + min(room, most))
        return self._slots(blocks, start, end), None, end - start

    def done(self, blocks: int) -> None:
        """Record that the blocks of the message from `next` were sent."""
        self._sent += blocks
        self._ahead += blocks
        if self._ahead == len(self._waiting[0]):
            self._waiting.popleft()
            self._ahead = 0

    def _slots(self, blocks: BlocksToSend, start: int, end: int) -> Slots:
        place, slots = blocks.place(start, end), blocks.slots_of(start, end)
        seal = self._seal.seal_slots(place, slots)
        return Slots(number=self._number, first=place.position, slots=slots, seal=seal)
