"""Replays a trace through `PrefixCache`: the code that serves, not a model of it.

A cache block is one block of the trace. The trace identifies its content by an id, so the cache
has blocks of one token, and that token is the id. What is compared, split, held, evicted and moved
is the same as with all tokens; only the arrays are shorter.

Each request ends before the next one begins: concurrency is not modelled, so nothing is held for
long. Only whole blocks are shared, and the last token is always computed. Generated tokens are
unknown content: they are not cached and not part of the hit rate. A prompt that is longer than
the device tier is computed and leaves nothing in the cache.

Knows: the steps of a request. Does not know: when copies end (`clock`), or how the numbers are
reported (`results`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cli.simulation.clock import CopyClock
from cli.simulation.trace import Request, Trace
from prefix_cache.cache import PrefixCache
from prefix_cache.hashing import block_keys
from prefix_cache.lease import Lease
from prefix_cache.namespace import NamespacePath, derive_namespace
from prefix_cache.policies import by_name
from prefix_cache.shelf import Tiers
from storage.move import DISK_TIER, HOST_TIER, Tier


@dataclass(frozen=True, slots=True)
class Sizes:
    """What each tier holds, in tokens."""

    device: int
    host: int = 0
    disk: int = 0

    @property
    def total(self) -> int:
        """All tiers together."""
        return self.device + self.host + self.disk

    def scaled(self, total: int) -> Sizes:
        """The same shares of another total."""
        host, disk = (tokens * total // self.total for tokens in (self.host, self.disk))
        return Sizes(total - host - disk, host, disk)


class Served(NamedTuple):
    """How one request was served, in tokens."""

    tenant: str
    input_tokens: int
    from_device: int
    from_host: int
    from_disk: int
    waited_s: float  # for copies

    @property
    def cached(self) -> int:
        """Tokens that were not computed."""
        return self.from_device + self.from_host + self.from_disk


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request as the gateway hands it on: whose namespace it is in, and its blocks' keys."""

    request: Request
    path: NamespacePath
    keys: bytes


def admit(trace: Trace) -> list[Admitted]:
    """Do what the gateway does for every request, once for all replays."""
    paths = {tenant: _path(tenant) for tenant in trace.tenants}
    return [
        Admitted(one, paths[one.tenant], block_keys(paths[one.tenant], one.ids, 1))
        for one in trace.requests
    ]


@dataclass(slots=True)
class Replayed:
    """All requests, in order, and what was moved, in blocks."""

    served: list[Served] = field(default_factory=list)
    too_long: int = 0  # prompts that the device tier could not hold
    written: dict[Tier, int] = field(default_factory=dict)
    loaded: dict[Tier, int] = field(default_factory=dict)


class Replay:
    """One trace through one cache."""

    def __init__(self, block_size: int, sizes: Sizes, policy: str, clock: CopyClock) -> None:
        """`block_size`: tokens an id stands for. A tier that is not there has no tokens."""
        self._block_size = block_size
        self._cache = PrefixCache(
            num_blocks=sizes.device // block_size,
            block_size=1,
            policy=by_name(policy, block_size),
            tiers=Tiers(
                host_blocks=sizes.host // block_size,
                disk_blocks=sizes.disk // block_size,
                max_disk_writes=max(64, sizes.disk // block_size),
            ),
        )
        self._clock = clock
        self._result = Replayed()

    def run(self, admitted: Sequence[Admitted], advance: Callable[[int], None]) -> Replayed:
        """Replay everything; `advance` is told the blocks of each request that is over."""
        for one in admitted:
            self._result.served.append(self._serve(one))
            advance(len(one.request.ids))
        traffic = self._cache.traffic
        self._result.written, self._result.loaded = dict(traffic.written), dict(traffic.loaded)
        return self._result

    def check(self) -> None:
        """Check the invariants of the cache; raises InvariantBroken."""
        self._cache.check_invariants()

    def _serve(self, admitted: Admitted) -> Served:
        cache, clock, request = self._cache, self._clock, admitted.request
        arrived = clock.arrive(request.at, cache)
        loaded = cache.traffic.loaded
        host, disk = loaded[HOST_TIER], loaded[DISK_TIER]
        lease = self._lease(admitted.path, request)
        if lease is None:
            self._result.too_long += 1
            return Served(request.tenant, request.input_tokens, 0, 0, 0, 0.0)
        host, disk, now = loaded[HOST_TIER] - host, loaded[DISK_TIER] - disk, clock.now
        size, cached = self._block_size, lease.cached_tokens
        cache.commit(lease, request.ids, request.input_tokens // size, admitted.keys, now=now)
        cache.release(lease, now=now)
        return Served(
            tenant=request.tenant,
            input_tokens=request.input_tokens,
            from_device=(cached - host - disk) * size,
            from_host=host * size,
            from_disk=disk * size,
            waited_s=now - arrived,
        )

    def _lease(self, path: NamespacePath, request: Request) -> Lease | None:
        """Acquire a lease, waiting for copies; None if the prompt can never fit."""
        cache, clock = self._cache, self._clock
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
