"""One fetch, as the owner and the thread that asks both see it.

    owner       begins it, reads `arrived`, closes it             never waits for the network
    thread      asks, opens what comes into the lease's blocks    only while it is not closed

The blocks are private to the sequence's lease. So that they are not written any more once the
lease is given back, the thread writes under `lock`, and the owner closes the fetch under it: it
waits for the few blocks that are being written just then, and for nothing that is on its way.
Blocks that are copied from another GPU are written until `writing` has passed.

Knows: what is wanted, and how far it has come. Does not know: sockets, or sequences.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from threading import Lock
from typing import Literal

from engine.exchange.seal import SealedPlace
from prefix_cache.hashing import KEY_BYTES, TokenIds
from prefix_cache.namespace import NamespacePath
from prefix_cache.tree.edge import BlockIds
from storage.copies import CopyEvent, Passed

Way = Literal["socket", "tcp", "device"]
# Two of the reasons why one ends before all has come.
SILENT = "it does not answer"
LATE = "it takes too long"


@dataclass(frozen=True, slots=True)
class Patience:
    """Bounds on the time of a fetch, in seconds."""

    least: float = 1.0
    times: float = 2.0  # as long as computing the blocks is predicted to take
    unmeasured: float = 10.0  # where nothing is predicted yet
    stream: float = 30.0  # in place of `least`, for blocks that are being computed there
    # How long nothing is fetched after a flush: longer than gateways wait for all engines to have
    # flushed, before they call it failed.
    flush: float = 10.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """Blocks `first` up to `end` of a prompt, and where they are to be put."""

    address: str
    path: NamespacePath
    tokens: TokenIds  # whole blocks, from position 0 to `end`
    block_keys: bytes
    block_ids: BlockIds  # block ids of all positions
    first: int
    end: int
    flow: str
    request_id: str | None
    deadline: float  # seconds, of time.monotonic
    after: CopyEvent  # the blocks may be written after it

    def place(self, start: int, end: int) -> SealedPlace | None:
        """Return the binding of the blocks from `start` up to `end`; None: they are not alike."""
        size = len(self.tokens) // self.end
        namespace, span_end = self.path.span_at(start)
        if span_end is not None and end > span_end:
            return None
        return SealedPlace(
            start,
            namespace,
            self.block_keys[start * KEY_BYTES : end * KEY_BYTES],
            self.tokens[start * size : end * size].astype("<i4", copy=False).tobytes(),
        )


@dataclass(slots=True, eq=False)
class Fetch:
    """Progress of a fetch. Written by the thread until `why` is set, closed by the owner."""

    wanted: Wanted
    arrived: int  # blocks from position 0 on that are in place and sound
    began: float  # of time.monotonic, as all its times
    way: Way  # over which blocks come; a guess until something was found
    is_closed: bool = False  # True once its blocks must not be written any more
    why: str | None = None  # reason of its end; "": all has come that was there
    answered: float | None = None  # time of the first message
    ended: float | None = None  # time of its end
    first_reads: dict[str, int] = field(default_factory=dict)  # first reads, in blocks by label
    lock: Lock = field(default_factory=Lock, repr=False)
    writing: CopyEvent = field(default_factory=Passed, repr=False)  # after all begun under `lock`

    def end(self, why: str) -> None:
        """End the fetch: nothing more will come; the first reason counts."""
        if self.why is None:
            self.ended = time.monotonic()
            self.why = why

    @property
    def is_over(self) -> bool:
        """True if nothing more will come."""
        return self.why is not None

    def close(self) -> None:
        """Stop writing: nothing is written any more once this returns; for the owner."""
        with self.lock:
            self.is_closed = True
        self.writing.synchronize()
