"""A replay of a trace through the real `PrefixCache`, not a model of it.

The trace gives each block an id instead of tokens. So the replay's cache has blocks of a single
token, the id. It treats these blocks exactly as it would treat blocks with all tokens.

Requests do not overlap in time. Only whole blocks are shared, and the last
token is always computed. Generated tokens are unknown, so they are not cached and not part of the
hit rate. A prompt that is longer than the device tier is computed but not cached.
With recurrent layers, a request starts from a cached recurrent state (`states`).

Copies between tiers end at once, or after the time that their bytes take. Copies between the same
two tiers run one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from cli.load.requests.trace import BlockTrace, Request
from cli.simulation.states import StateCosts, StatesReport, rows, states_report
from prefix_cache.cache import PrefixCache
from prefix_cache.eviction.policies import policy_by_name
from prefix_cache.eviction.shares import Quota
from prefix_cache.hashing import block_keys
from prefix_cache.leases.lease import Lease
from prefix_cache.names import PolicyName
from prefix_cache.namespace import NamespacePath, derive_namespace
from prefix_cache.tiers.tier_pools import Tiers
from storage.move import DISK_TIER, HOST_TIER, Move, Tier

Way = tuple[Tier, Tier]


@dataclass(frozen=True, slots=True)
class TierSizes:
    """The sizes of the tiers, in tokens."""

    device: int
    host: int = 0
    disk: int = 0

    @property
    def total(self) -> int:
        """The number of tokens of all tiers."""
        return self.device + self.host + self.disk

    def scaled(self, total: int) -> TierSizes:
        """Divide `total` tokens between the tiers in the same proportions."""
        host, disk = (tokens * total // self.total for tokens in (self.host, self.disk))
        return TierSizes(total - host - disk, host, disk)


class ServedRequest(NamedTuple):
    """The number of a request's tokens from each source, and the request's wait in seconds."""

    tenant: str
    input_tokens: int
    from_device: int
    from_host: int
    from_disk: int
    waited_s: float
    fetched: int = 0

    @property
    def cached(self) -> int:
        """The number of tokens from the replica's own cache."""
        return self.from_device + self.from_host + self.from_disk

    @property
    def computed(self) -> int:
        """The number of tokens that were in no cache, and so were computed."""
        return self.input_tokens - self.cached - self.fetched


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """A request in the form that the gateway sends to an engine, with namespaces and block keys."""

    request: Request
    path: NamespacePath
    keys: bytes


@dataclass(frozen=True, slots=True)
class EqualParts:
    """Tenants with equal parts of each tier, and the maximum number of blocks of a prompt."""

    tenants: Sequence[str]
    longest: int


def partition_of(trace: BlockTrace) -> EqualParts | None:
    """Divide the cache among a trace's tenants. Returns None for a single tenant."""
    tenants = trace.tenants
    longest = max(len(request.ids) for request in trace.requests)
    return EqualParts(tenants, longest) if len(tenants) > 1 else None


def admit(trace: BlockTrace) -> list[KeyedRequest]:
    """Compute namespaces and block keys of all requests, as the gateway does."""
    paths = {tenant: _path(tenant) for tenant in trace.tenants}
    return [
        KeyedRequest(one, paths[one.tenant], block_keys(paths[one.tenant], one.ids, 1))
        for one in trace.requests
    ]


class CopyClock:
    """The simulated clock and the running copies. Waiting for a copy advances the clock."""

    def __init__(self, seconds_per_block: Mapping[Way, float] | None = None) -> None:
        """Set the seconds in which a block is copied, by direction. None: copies end at once."""
        self.now = 0.0
        self._seconds = seconds_per_block
        self._free_at: dict[Way, float] = {}
        self._serial: Iterator[int] = count()
        self._under_way: list[tuple[float, int, tuple[Move, ...]]] = []

    def arrive(self, at: float, cache: PrefixCache) -> float:
        """Advance the clock to `at` if this is later, and complete ended copies. Returns `at`."""
        self._begin(cache)
        while self._under_way and self._under_way[0][0] <= at:
            self._settle_next(cache)
        self.now = max(self.now, at)
        return at

    def wait(self, cache: PrefixCache) -> bool:
        """Advance the clock until the next copies end. Returns False if no copy is running."""
        self._begin(cache)
        if not self._under_way:
            return False
        self._settle_next(cache)
        return True

    def _begin(self, cache: PrefixCache) -> None:
        moves = cache.moves.take_plan().moves
        if not moves:
            return
        if self._seconds is None:
            heappush(self._under_way, (self.now, next(self._serial), moves))
            return
        by_way: dict[Way, list[Move]] = {}
        for move in moves:
            by_way.setdefault((move.source_tier, move.target_tier), []).append(move)
        for way, batch in by_way.items():
            start = max(self.now, self._free_at.get(way, 0.0))
            state_blocks = cache.capacity.tiers.state_blocks
            blocks = sum(state_blocks if move.is_state else 1 for move in batch)
            self._free_at[way] = end = start + blocks * self._seconds.get(way, 0.0)
            heappush(self._under_way, (end, next(self._serial), tuple(batch)))

    def _settle_next(self, cache: PrefixCache) -> None:
        end, _, moves = heappop(self._under_way)
        self.now = max(self.now, end)
        cache.moves.complete(done=moves)


def _tiers(sizes: TierSizes, block_size: int, states: StateCosts | None) -> Tiers:
    host, disk = sizes.host // block_size, sizes.disk // block_size
    return Tiers(
        host_blocks=host,
        disk_blocks=disk,
        max_disk_writes=max(64, disk),
        host_states=0 if states is None else states.below(host, block_size),
        disk_states=0 if states is None else states.below(disk, block_size),
        state_blocks=1 if states is None else states.state_blocks(block_size),
    )


@dataclass(slots=True)
class Replayed:
    """The served requests of a replay, and the numbers of moved blocks."""

    policy: PolicyName
    block_size: int
    sizes: TierSizes
    served: list[ServedRequest] = field(default_factory=list)
    too_long: int = 0  # number of prompts that did not fit the device tier
    written: dict[Tier, int] = field(default_factory=dict)
    loaded: dict[Tier, int] = field(default_factory=dict)
    blocks_per_second: float = 0.0
    states: StatesReport | None = None


class Replay:
    """A replay of one trace through one cache."""

    def __init__(
        self,
        block_size: int,
        sizes: TierSizes,
        policy: PolicyName,
        clock: CopyClock,
        partition: EqualParts | None = None,
        states: StateCosts | None = None,
    ) -> None:
        """Replay a trace in which each id stands for `block_size` tokens.

        A tier of 0 tokens is left out. `states` are the costs of recurrent states, if the model has
        recurrent layers.
        """
        self._block_size = block_size
        self.cache = PrefixCache(
            num_blocks=sizes.device // block_size,
            block_size=1,
            policy=policy_by_name(policy),
            tiers=_tiers(sizes, block_size, states),
            num_states=0 if states is None else states.slots(sizes.device),
            max_running=1,
        )
        if partition is not None:
            parts = dict.fromkeys(partition.tenants, Quota())
            longest = dict.fromkeys(parts, partition.longest)
            self.cache.quotas.partition(parts, longest)
        self._clock = clock
        self._states = states
        self._result = Replayed(policy, block_size, sizes)

    def run(self, admitted: Sequence[KeyedRequest], advance: Callable[[int], None]) -> Replayed:
        """Replay all requests. `advance` is called with the blocks of each ended request."""
        for one in admitted:
            self.serve(one)
            advance(len(one.request.ids))
        return self.result

    @property
    def result(self) -> Replayed:
        """The requests served so far."""
        log = self.cache.eviction_log
        self._result.written, self._result.loaded = dict(log.written), dict(log.loaded)
        if self._states is not None:
            self._result.states = states_report(
                self.cache, self._states.state_bytes, self._block_size
            )
        return self._result

    def check(self) -> None:
        """Check the cache's invariants. Raises InvariantBroken."""
        self.cache.check_invariants()

    def serve(self, admitted: KeyedRequest) -> ServedRequest:
        """Serve a request, which must not arrive before the previous request."""
        served = self._serve(admitted)
        self._result.served.append(served)
        return served

    def note_fetched(self, tokens: int) -> ServedRequest:
        """Record that `tokens` tokens of the last request came from another replica."""
        served = self._result.served[-1] = self._result.served[-1]._replace(fetched=tokens)
        return served

    def _serve(self, admitted: KeyedRequest) -> ServedRequest:
        cache, clock, request = self.cache, self._clock, admitted.request
        arrived = clock.arrive(request.at, cache)
        loaded = cache.eviction_log.loaded
        host, disk = loaded[HOST_TIER], loaded[DISK_TIER]
        lease = self._lease(admitted.path, request)
        if lease is None:
            self._result.too_long += 1
            return ServedRequest(request.tenant, request.input_tokens, 0, 0, 0, 0.0)
        host, disk, now = loaded[HOST_TIER] - host, loaded[DISK_TIER] - disk, clock.now
        size, cached = self._block_size, lease.cached_tokens
        whole = request.input_tokens // size
        for end in rows(cache, lease, len(request.ids), size):
            cache.commit(lease, request.ids, min(end, whole), admitted.keys, now=now)
        cache.release(lease, now=now)
        return ServedRequest(
            tenant=request.tenant,
            input_tokens=request.input_tokens,
            from_device=(cached - host - disk) * size,
            from_host=host * size,
            from_disk=disk * size,
            waited_s=now - arrived,
        )

    def _lease(self, path: NamespacePath, request: Request) -> Lease | None:
        """Acquire a lease, waiting for copies. Returns None if the prompt can never fit."""
        cache, clock = self.cache, self._clock
        if not cache.fits(len(request.ids)):
            return None
        while True:
            lease = cache.acquire(path, request.ids, owner=request.tenant, now=clock.now)
            if lease is None and not clock.wait(cache):
                return None
            while lease is not None and not lease.ready and clock.wait(cache):
                pass
            if lease is not None:
                return lease


def _path(tenant: str) -> NamespacePath:
    return NamespacePath.single(derive_namespace(b"simulation", b"", (tenant,)))
