"""What one engine is being sent: blocks that wait, how many may be on their way, the end.

    waiting ---- as far as the window reaches ----> sent ---- the other end says so ----> taken

Knows: windows, seals, messages. Does not know: sockets, or who is sent them.
"""

from __future__ import annotations

import secrets
from collections import deque
from dataclasses import dataclass
from itertools import islice

from engine.exchange.block_memory import BlockReader
from engine.exchange.seal import Seal, SealedPlace
from engine.exchange.wire import (
    SALT_BYTES,
    Ask,
    Block,
    Ended,
    Found,
    FromSource,
    PoolHandle,
    Slices,
    Slots,
)

# Where the asker copies the blocks itself no bytes are on their way: while it copies some, it is
# told of the next ones, and neither waits for the other at each window.
FIRST_SLOTS = 64  # in the first message, before which nothing is copied
SLOTS_AT_ONCE = 256  # in another: each costs both ends some words
SLOTS_UNTAKEN = 1024


@dataclass(frozen=True, slots=True)
class BlockToSend:
    """A block, and its slot; leased as long as it is read."""

    place: SealedPlace
    slot: int


class Sending:
    """One ask that is being answered. For one thread."""

    def __init__(self, ask: Ask, now: float, pool: PoolHandle | None, *, window: int) -> None:
        """`pool`: the asker copies the blocks from there; None: they are sent. `now`: seconds.

        `window`: blocks that may be on their way at most, whatever the ask says.
        """
        self.heard = now  # when the asker said something last
        self.end: Ended | None = None
        self._number = ask.number
        self._window = min(max(ask.window, 1), window) if pool is None else SLOTS_UNTAKEN
        self._pool = pool
        self._salt = secrets.token_bytes(SALT_BYTES)
        self._seal = Seal(ask.fingerprint, ask.salt, self._salt)
        self._waiting: deque[BlockToSend] = deque()
        self._sent = self._taken = self._first = ask.first  # blocks of the prompt

    @property
    def is_over(self) -> bool:
        """Whether its end may be told: all that was there is taken, or nothing more is to come."""
        if self.end is None or self._waiting:
            return False
        return not self.end.is_all or self._taken == self._sent

    def found(self, blocks: int, first_reads: dict[str, int], slices: Slices | None) -> Found:
        """The message that so many blocks of the prompt are there."""
        return Found(
            number=self._number,
            salt=self._salt,
            blocks=blocks,
            first_reads=first_reads,
            pool=self._pool,
            slices=slices,
        )

    def add(self, blocks: list[BlockToSend]) -> None:
        """They come after those that are there."""
        self._waiting.extend(blocks)

    def stop(self, end: Ended) -> None:
        """No others will be added; unless all are to be sent, those that wait are not."""
        self.end = end
        if not end.is_all:
            self._waiting.clear()

    def take(self, blocks: int) -> int:
        """The asker has the first `blocks` blocks, it says; returns how many it may have."""
        self._taken = min(max(self._taken, blocks), self._sent)
        return self._taken

    def next(self, reader: BlockReader) -> tuple[FromSource, bytearray | None, int] | None:
        """What to send now, its payload, and how many blocks that is; None: nothing now.

        The same again, until it was `done`.
        """
        room = self._window - (self._sent - self._taken)
        if room < 1 or not self._waiting:
            return None
        if self._pool is None:
            block = self._waiting[0]
            payload = self._seal.seal(block.place, reader.read(block.slot))
            return Block(self._number, block.place.position), payload, 1
        most = FIRST_SLOTS if self._sent == self._first else SLOTS_AT_ONCE
        count = min(room, len(self._waiting), most)
        blocks = list(islice(self._waiting, count))
        return self._slots(blocks), None, len(blocks)

    def done(self, blocks: int) -> None:
        """So many were sent."""
        for _ in range(blocks):
            self._waiting.popleft()
        self._sent += blocks

    def _slots(self, blocks: list[BlockToSend]) -> Slots:
        return Slots(
            number=self._number,
            first=blocks[0].place.position,
            slots=b"".join(one.slot.to_bytes(4, "little") for one in blocks),
            seals=b"".join(self._seal.seal_slot(one.place, one.slot) for one in blocks),
        )
