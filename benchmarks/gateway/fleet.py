"""A router and its replicas, for measurements of routing."""

from __future__ import annotations

import time

import numpy as np

from engine.link.cache_events import Added, CacheChange, CacheEvents, Cleared, Moved
from gateway.routing.prompt import RoutingRequest
from gateway.routing.routers.first_token import FirstTokenRouter
from prefix_cache.hashing import KEY_BYTES
from prefix_cache.namespace import Namespace, NamespacePath

PIECE = 4096
BLOCK_SIZE = 16
PATH = NamespacePath.single(Namespace(bytes(16)))
UNDER_WAY = 16  # number of requests without a first token yet


class Fleet:
    """A router, and names of replicas with random blocks."""

    def __init__(self, replicas: int, prompt_blocks: int) -> None:
        self.names = [f"replica-{number}" for number in range(replicas)]
        self.sources = {name: f"/exchange/{name}" for name in self.names}
        self.prompt_blocks = prompt_blocks
        self.router = FirstTokenRouter(time.monotonic)
        self._random = np.random.default_rng(1)
        self._sent: list[tuple[str, str]] = []
        self._serial = 0

    def keys(self, blocks: int) -> bytes:
        """Draw random block keys that no replica has."""
        return self._random.bytes(KEY_BYTES * blocks)

    def tell(self, name: str, keys: bytes, *, first: bool = False, in_tiers: bool = False) -> None:
        """Report blocks on a replica's device to the router.

        `first` means a snapshot instead of an update. With `in_tiers`, a third of the blocks is on
        the device, a third in host memory and a third on disk.
        """
        changes: list[CacheChange] = [Cleared()] if first else []
        changes.append(Added("device", keys))
        if in_tiers:
            third = len(keys) // KEY_BYTES // 3 * KEY_BYTES
            changes += [Moved("host", keys[third : 2 * third]), Moved("disk", keys[2 * third :])]
        self.router.heard(name, CacheEvents(number=0, changes=tuple(changes)))

    def fill(self, blocks: int) -> float:
        """Add `blocks` blocks to each replica, and return the router's seconds."""
        seconds = 0.0
        for name in self.names:
            for start in range(0, blocks, PIECE):
                keys = self.keys(min(PIECE, blocks - start))
                began = time.thread_time()
                self.tell(name, keys, first=start == 0)
                seconds += time.thread_time() - began
        return seconds

    def request(self, keys: bytes) -> RoutingRequest:
        """Create a request whose prompt has these blocks."""
        self._serial += 1
        tokens = BLOCK_SIZE * self.prompt_blocks
        return RoutingRequest(str(self._serial), tokens, keys, PATH.spans[-1][1])

    def route(self, keys: bytes) -> float:
        """Route a request and note its replica, and return the seconds."""
        request = self.request(keys)
        began = time.thread_time()
        name = self.router.choose(request, self.names, self.sources).replica
        self.router.sent(name, request)
        seconds = time.thread_time() - began
        self._sent.append((name, request.request_id))
        if len(self._sent) > UNDER_WAY:
            self.router.ended(*self._sent.pop(0))
        return seconds
