"""The state of a fetch, shared by the owner thread and the fetching thread.

    owner       begins the fetch, reads `arrived`, closes the fetch; never waits for the network
    thread      asks, and decrypts blocks into the lease's slots until the fetch is closed

The blocks are private to the sequence's lease, and must not be written after the lease is released.
The thread therefore writes while it holds `lock`, and the owner takes `lock` to close the fetch.
Closing waits only for the few blocks that are being written. Copies from another GPU go on until
the event `writing` has passed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Literal

from engine.exchange.seal import SealedPlace
from prefix_cache.hashing import KEY_BYTES, TokenIds
from prefix_cache.namespace import NamespacePath
from prefix_cache.tree.edge import BlockIds
from storage.copies import CopyEvent, Passed

Way = Literal["socket", "tcp", "device"]
# Reasons why a fetch ends before all its blocks have arrived.
SILENT = "it does not answer"
LATE = "it takes too long"


@dataclass(frozen=True, slots=True)
class Patience:
    """Bounds on the duration of a fetch, in seconds."""

    least: float = 1.0
    times: float = 2.0  # time limit as a multiple of the predicted time to compute the blocks
    unmeasured: float = 10.0  # minimum time limit if there is no prediction
    stream: float = 30.0  # minimum time limit for blocks that are still being computed

    # The number of seconds after a flush in which no block is fetched. Gateways wait less than this
    # before they report a failed flush.
    flush: float = 10.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """The blocks `first` up to `end` of a prompt, and the pool's slots that receive them."""

    address: str
    path: NamespacePath
    tokens: TokenIds  # tokens of whole blocks, from position 0 to `end`
    block_keys: bytes
    block_ids: BlockIds
    first: int
    end: int
    flow: str
    request_id: str | None
    deadline: float  # in seconds of time.monotonic
    after: CopyEvent
    # The slot for the recurrent state after the last block, if the model has recurrent states.
    state_slot: int | None = None
    state_units: range = range(0)

    def place(self, start: int, end: int) -> SealedPlace | None:
        """Return the data with which blocks `start` up to `end` are authenticated.

        Return None if the blocks belong to several namespaces.
        """
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

    def place_of_unit(self, end: int, unit: int) -> SealedPlace | None:
        """Return the data with which a unit of the recurrent state at `end` is authenticated."""
        last = self.place(end - 1, end)
        return None if last is None else replace(last, position=end + unit)


@dataclass(slots=True, eq=False)
class Fetch:
    """The progress of a fetch. The fetching thread updates it until `why` is set."""

    wanted: Wanted
    # The number of the prompt's leading blocks that are written and authenticated. With recurrent
    # states, this number stays at `wanted.first` until the state after the last block is written.
    arrived: int
    began: float  # start, in seconds of time.monotonic like all times here
    way: Way  # transport of the blocks; a guess until the sender answers
    is_closed: bool = False  # True once the slots must not be written any more
    why: str | None = None  # why the fetch ended; "" if all available blocks have arrived
    answered: float | None = None
    ended: float | None = None
    first_reads: dict[str, int] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock, repr=False)
    writing: CopyEvent = field(default_factory=Passed, repr=False)

    def end(self, why: str) -> None:
        """End the fetch. No more blocks arrive after that. Only the first reason counts."""
        if self.why is None:
            self.ended = time.monotonic()
            self.why = why

    @property
    def units(self) -> int:
        """The number of arrived blocks, plus the units of their recurrent state."""
        blocks = self.arrived - self.wanted.first
        return blocks + len(self.wanted.state_units) if blocks else 0

    @property
    def is_over(self) -> bool:
        """True if no more blocks will arrive."""
        return self.why is not None

    def close(self) -> None:
        """Close the fetch, so that no slot is written any more. Only the owner calls this."""
        with self.lock:
            self.is_closed = True
        self.writing.synchronize()
