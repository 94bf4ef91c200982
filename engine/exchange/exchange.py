"""The interface of the exchange, as the engine's step sees it.

    turn       asks of other engines are answered       before a step is scheduled
    advance    what has come for our own requests

Knows: both directions, and what opens them. Does not know: when steps are made (`core`).
"""

from __future__ import annotations

from engine.exchange.answering import ExchangeAnswering
from engine.exchange.asking import SILENCE_S, Asking
from engine.exchange.block_memory import BlockMemory, CudaMemory, memory_of
from engine.exchange.fetch import Patience, Way
from engine.exchange.fetches import Fetches, Progress
from engine.exchange.parts import OpenExchange
from engine.exchange.peer_pool import CudaPeerPools, PeerPools, share
from engine.exchange.rates import FetchRates
from engine.exchange.recent_flushes import FlushScope
from engine.exchange.source import RunningRequest, Source
from engine.exchange.wire import PoolHandle
from engine.link.address import is_tcp
from engine.link.stats_messages import ExchangeStats
from engine.link.tcp.curve import LinkKey
from engine.link.waker import Waker
from engine.scheduling.sequence import Sequence
from prefix_cache.cache import PrefixCache
from prefix_cache.leases.load_or_recompute import PrefillTimes
from storage.copies import CopyEvent
from storage.device_pool import DevicePool


class OpenedExchange:
    """The threads that answer and ask, around the memory of the blocks; closed by who opened it.

    Those of one rank. An `OpenExchange`.
    """

    def __init__(
        self,
        memory: BlockMemory,
        waker: Waker,
        answering: ExchangeAnswering | None,
        *,
        key: LinkKey | None = None,
        pools: PeerPools | None = None,
        patience: Patience | None = None,
        silence_s: float = SILENCE_S,
    ) -> None:
        """`waker` wakes the owner. `answering` None: other engines fetch nothing here.

        `key`: for addresses over TCP; `pools`: of GPUs beside this one.
        """
        self.memory = memory
        self.waker = waker
        self.answering = answering
        self.patience = patience
        self._key = key
        self._pools = pools
        self.silence_s = silence_s
        self._asking: Asking | None = None

    @property
    def address(self) -> str | None:
        """Where other engines ask."""
        return None if self.answering is None else self.answering.address

    @property
    def block_bytes(self) -> int:
        """Bytes of a block, of what this rank has of it."""
        return self.memory.block_bytes

    def mark(self) -> CopyEvent:
        """A point after all that this rank has launched so far."""
        return self.memory.mark()

    def asking(self, fingerprint: bytes) -> Asking:
        """The thread that asks others, made when it is first needed. Raises OSError: not now."""
        if self._asking is None:
            self._asking = Asking(
                self.memory,
                fingerprint,
                self.waker.wake,
                key=self._key,
                pools=self._pools,
                silence_s=self.silence_s,
            )
        return self._asking

    def way_of(self, where: str) -> Way:
        """Over which way blocks of the engine there are expected."""
        if is_tcp(where):
            return "tcp"
        is_neighbour = self._pools is not None and self._pools.host_of(where) is not None
        return "device" if is_neighbour else "socket"

    def close(self) -> None:
        """Ask and answer no more."""
        for thread in (self._asking, self.answering):
            if thread is not None:
                thread.close()
        self.waker.close()


def open_exchange(
    pool: DevicePool, where: str | None, key: LinkKey | None, *, between_gpus: bool = True
) -> OpenedExchange:
    """Of blocks of `pool`; `where` others ask: a path, or over TCP host and port; None: nowhere.

    `between_gpus`: those of one host copy from each other's pools. Raises ValueError, OSError where
    that address cannot be had.
    """
    memory, waker = memory_of(pool), Waker()
    pools: PeerPools | None = None
    handle: PoolHandle | None = None
    if isinstance(memory, CudaMemory) and between_gpus:
        pools, handle = CudaPeerPools(memory.blocks), share(memory.blocks)
    answering = None
    if where is not None:
        answering = ExchangeAnswering(where, memory, waker.wake, key=key, pool=handle)
    return OpenedExchange(memory, waker, answering, key=key, pools=pools)


class Exchange:
    """Both directions of one engine. A `scheduling.fetching.Fetching`. One owner thread."""

    def __init__(
        self,
        cache: PrefixCache,
        times: PrefillTimes,
        fingerprint: bytes,
        block_bytes: int,
        opened: OpenExchange | None,
    ) -> None:
        """`opened` None: nothing is fetched, and nothing sent."""
        self._answering = None if opened is None else opened.answering
        self._source = None
        if self._answering is not None:
            self._source = Source(cache, self._answering, fingerprint)
        rates = FetchRates(times, block_size=cache.block_size, block_bytes=block_bytes)
        self._fetches = Fetches(cache, rates, opened, fingerprint)

    @property
    def is_busy(self) -> bool:
        """Whether anything is awaited of other engines, or being sent to them."""
        return self._fetches.is_busy or (self._source is not None and self._source.is_busy)

    @property
    def is_lending(self) -> bool:
        """As `Fetching.is_lending`."""
        return self._source is not None and self._source.is_lending

    def begin(self, sequence: Sequence, now: float, before: int) -> None:
        """As `Fetching.begin`."""
        self._fetches.begin(sequence, now, before)

    def leave(self, sequence: Sequence, now: float) -> None:
        """As `Fetching.leave`."""
        self._fetches.leave(sequence, now)

    def flush(self, scope: FlushScope, now: float) -> None:
        """As `Fetches.flush`."""
        self._fetches.flush(scope, now)

    def turn(self, running: RunningRequest, now: float) -> None:
        """Answer what other engines ask."""
        if self._source is not None:
            self._source.turn(running, now)

    def advance(self, now: float) -> list[Progress]:
        """What has come for our own requests since the last call."""
        return self._fetches.advance(now) if self._fetches.is_busy else []

    def stats(self) -> ExchangeStats:
        """The counts since the start."""
        answering = self._answering
        return ExchangeStats(
            fetched=self._fetches.stats(),
            refused=self._fetches.refused,
            sent_blocks=0 if answering is None else answering.sent_blocks,
            sent_bytes=0 if answering is None else answering.sent_bytes,
        )
