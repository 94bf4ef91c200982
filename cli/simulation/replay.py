"""A replay of a trace through the real `PrefixCache`, not a model of it.

The trace gives each block an id instead of tokens. So the replay's cache has blocks of a single
token, the id. It treats these blocks exactly as it would treat blocks with all tokens.

Requests do not overlap in time. Only whole blocks are shared, and the last
token is always computed. Generated tokens are unknown, so they are not cached and not part of the
hit rate. A prompt that is longer than the device tier is computed but not cached.
With recurrent layers, a request starts from a cached recurrent state (`states`).

Copies between tiers take no time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
from storage.move import DISK_TIER, HOST_TIER, Tier


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
    """The number of a request's tokens from each source."""

    tenant: str
    input_tokens: int
    from_device: int
    from_host: int
    from_disk: int
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
        self._states = states
        self._now = 0.0
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
        cache, request = self.cache, admitted.request
        self._now = max(self._now, request.at)
        self._copy()
        loaded = cache.eviction_log.loaded
        host, disk = loaded[HOST_TIER], loaded[DISK_TIER]
        lease = self._lease(admitted.path, request)
        if lease is None:
            self._result.too_long += 1
            return ServedRequest(request.tenant, request.input_tokens, 0, 0, 0)
        host, disk = loaded[HOST_TIER] - host, loaded[DISK_TIER] - disk
        size, cached = self._block_size, lease.cached_tokens
        whole = request.input_tokens // size
        for end in rows(cache, lease, len(request.ids), size):
            cache.commit(lease, request.ids, min(end, whole), admitted.keys, now=self._now)
        cache.release(lease, now=self._now)
        return ServedRequest(
            tenant=request.tenant,
            input_tokens=request.input_tokens,
            from_device=(cached - host - disk) * size,
            from_host=host * size,
            from_disk=disk * size,
        )

    def _lease(self, path: NamespacePath, request: Request) -> Lease | None:
        """Acquire a lease and make its copies. Returns None if the prompt never fits."""
        cache = self.cache
        if not cache.fits(len(request.ids)):
            return None
        while True:
            lease = cache.acquire(path, request.ids, owner=request.tenant, now=self._now)
            if lease is None and not self._copy():
                return None
            while lease is not None and not lease.ready and self._copy():
                pass
            if lease is not None:
                return lease

    def _copy(self) -> bool:
        """Complete the planned copies between tiers. Returns False if none are planned."""
        moves = self.cache.moves.take_plan().moves
        if moves:
            self.cache.moves.complete(done=moves)
        return bool(moves)


def _path(tenant: str) -> NamespacePath:
    return NamespacePath.single(derive_namespace(b"simulation", b"", (tenant,)))
