"""The exchange of KV blocks with other engines, as the engine's loop uses it.

    turn       answer other engines' requests for blocks      before a step is scheduled
    advance    report the progress of this engine's fetches

The core calls both between steps.

Elsewhere: when steps are made (`core`).
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.exchange.block_memory import CudaMemory, States, memory_of
from engine.exchange.carrying import CarriedPrefixes
from engine.exchange.fetching.client import SILENCE_S, BlockClient
from engine.exchange.fetching.fetch import Patience
from engine.exchange.fetching.fetches import Fetches, Progress
from engine.exchange.fetching.rates import FetchRates
from engine.exchange.fetching.recent_flushes import FlushScope
from engine.exchange.peer_pool import CudaPeerPools, PeerPools, share
from engine.exchange.serving.server import BlockServer
from engine.exchange.serving.source import RunningRequest, Source
from engine.exchange.wire import PoolHandle
from engine.link.engine_end.waker import Waker
from engine.link.stats.engine_stats import ExchangeStats
from engine.link.tcp.curve import LinkKey
from engine.sequences.sequence import Sequence
from prefix_cache.cache import PrefixCache
from prefix_cache.leases.load_or_recompute import PrefillTimes
from storage.pools.device_pool import DevicePool


@dataclass(frozen=True, slots=True)
class ExchangeThreads:
    """The threads that send and receive blocks. Their opener closes them."""

    waker: Waker
    client: BlockClient
    server: BlockServer | None  # None: other engines cannot fetch blocks

    @property
    def address(self) -> str | None:
        """The address where other engines ask for blocks, or None."""
        return None if self.server is None else self.server.address

    def close(self) -> None:
        """Stop both threads."""
        self.client.close()
        if self.server is not None:
            self.server.close()
        self.waker.close()


def open_exchange(
    pool: DevicePool,
    where: str | None,
    key: LinkKey | None,
    fingerprint: bytes,
    *,
    states: States | None = None,
    between_gpus: bool = True,
    silence_s: float = SILENCE_S,
) -> ExchangeThreads:
    """Open the exchange for the blocks of `pool`. The `fingerprint` identifies their model.

    Other engines send requests to `where`, a path or a TCP host and port. If None, they send none.
    `states` is the pool of the model's recurrent states or windows, if any. With `between_gpus`,
    engines of one host copy directly from each other's pools, unless the model has recurrent
    states. A fetch ends if the other engine is silent for `silence_s` seconds. Raises ValueError,
    or OSError if the address cannot be bound.
    """
    memory, waker = memory_of(pool, states), Waker()
    pools: PeerPools | None = None
    handle: PoolHandle | None = None
    if isinstance(memory, CudaMemory) and between_gpus and states is None:
        pools, handle = CudaPeerPools(memory.blocks), share(memory.blocks)
    server = None
    if where is not None:
        server = BlockServer(where, memory, waker.wake, key=key, pool=handle)
    client = BlockClient(memory, fingerprint, waker.wake, key=key, pools=pools, silence_s=silence_s)
    return ExchangeThreads(waker, client, server)


class Exchange:
    """The exchange of blocks with other engines. Implements `Fetcher`. Used by one thread only."""

    def __init__(
        self,
        cache: PrefixCache,
        times: PrefillTimes,
        fingerprint: bytes,
        block_bytes: int,
        threads: ExchangeThreads | None,
        patience: Patience | None = None,
        carried: CarriedPrefixes | None = None,
    ) -> None:
        """Exchange blocks through `threads`. If None, no blocks are fetched or sent.

        `carried` are the prefixes that operators export and import.
        """
        self.carried = carried
        self._server = None if threads is None else threads.server
        self._source = None
        if self._server is not None:
            self._source = Source(cache, self._server, fingerprint)
        rates = FetchRates(times, block_size=cache.block_size, block_bytes=block_bytes)
        client = None if threads is None else threads.client
        self._fetches = Fetches(cache, rates, client, patience or Patience())

    @property
    def is_busy(self) -> bool:
        """True if any block is being fetched from other engines or sent to them."""
        return self._fetches.is_busy or (self._source is not None and self._source.is_busy)

    @property
    def is_exporting(self) -> bool:
        is_holding = self.carried is not None and self.carried.is_holding
        return is_holding or (self._source is not None and self._source.is_exporting)

    def begin(self, sequence: Sequence, now: float, before: int) -> None:
        self._fetches.begin(sequence, now, before)

    def leave(self, sequence: Sequence, now: float) -> None:
        self._fetches.leave(sequence, now)

    def flush(self, scope: FlushScope, now: float) -> None:
        """Fetch no blocks in the flushed scope for a while. Missing blocks are computed instead."""
        self._fetches.flush(scope, now)

    def turn(self, running: RunningRequest, now: float) -> None:
        """Answer other engines' requests for blocks."""
        if self.carried is not None:
            self.carried.drop_late(now)
        if self._source is not None:
            self._source.turn(running, now)

    def advance(self, now: float) -> list[Progress]:
        """Return the progress of this engine's fetches since the last call."""
        return self._fetches.advance(now) if self._fetches.is_busy else []

    def stats(self) -> ExchangeStats:
        """Return the counters since the start."""
        server = self._server
        return ExchangeStats(
            fetched=self._fetches.stats(),
            refused=self._fetches.refused,
            sent_blocks=0 if server is None else server.sent_blocks,
            sent_bytes=0 if server is None else server.sent_bytes,
        )
