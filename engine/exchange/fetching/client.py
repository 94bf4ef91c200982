"""The client of other engines, from which it fetches KV blocks into the pool."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from engine.exchange.block_memory import BlockMemory
from engine.exchange.errors import ThreadEnded
from engine.exchange.fetching.fetch import Fetch, Way
from engine.exchange.fetching.fetching_thread import FetchingThread
from engine.exchange.peer_pool import PeerPools
from engine.link.address import is_tcp
from engine.link.tcp.curve import LinkKey
from storage.copies import CopyEvent

SILENCE_S = 2.0  # seconds of silence after which an engine counts as dead


class BlockClient:
    """The client of other engines, used by the owner thread.

    The fetching thread starts with the first fetch.
    """

    def __init__(
        self,
        memory: BlockMemory,
        fingerprint: bytes,
        wake_owner: Callable[[], object],
        *,
        key: LinkKey | None = None,
        pools: PeerPools | None = None,
        silence_s: float = SILENCE_S,
    ) -> None:
        """Fetch blocks into `memory` from engines with the same `fingerprint`.

        `key` encrypts connections over TCP. `pools` opens the pools of this host's other GPUs.
        """
        self._memory = memory
        self._pools = pools
        self._start = partial(
            FetchingThread, memory, fingerprint, wake_owner, key, pools, silence_s=silence_s
        )
        self._thread: FetchingThread | None = None

    @property
    def block_bytes(self) -> int:
        """The bytes of one block."""
        return self._memory.block_bytes

    def units_of_state(self, state_slot: int) -> range:
        """Return the slots of the units that make up a recurrent state."""
        return self._memory.units_of_state(state_slot)

    def record_event(self) -> CopyEvent:
        """Record an event after all work launched so far."""
        return self._memory.record_event()

    def way_of(self, where: str) -> Way:
        """Return the expected transport of blocks from the engine at `where`."""
        if is_tcp(where):
            return "tcp"
        is_neighbour = self._pools is not None and self._pools.host_of(where) is not None
        return "device" if is_neighbour else "socket"

    def begin(self, fetch: Fetch) -> None:
        """Request a fetch's blocks. Raises ThreadEnded, or OSError if no request can be sent."""
        if self._thread is None:
            self._thread = self._start()
        if not self._thread.is_alive:
            raise ThreadEnded("the thread that asks other engines has ended")
        self._thread.ask(fetch)

    def leave(self, fetch: Fetch) -> None:
        """Tell the other engine that a fetch is closed."""
        if self._thread is not None:
            self._thread.leave(fetch)

    def close(self) -> None:
        """End the thread and all fetches."""
        if self._thread is not None:
            self._thread.close()
