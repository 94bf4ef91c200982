"""The routers of several gateways in front of the same replicas, as one router.

Each gateway has its own router, which learns of changes in all caches, but only of its own
gateway's requests. So a router does not know how many requests of other gateways are waiting, or
which blocks these requests will add to the caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from engine.link.cache_events import CacheEvents
from engine.link.event_messages import Reused, Timing
from gateway.routing.prompt import RoutingRequest
from gateway.routing.router import NO_SOURCES, Router, RoutingChoice, Sources


class GatewaysRouter:
    """A router that picks a random gateway's router for each request."""

    def __init__(self, gateways: Sequence[Router]) -> None:
        """Route by `gateways`: one router for each gateway, at least one."""
        self._gateways = gateways

    def choose(
        self, request: RoutingRequest, ready: Sequence[str], sources: Sources = NO_SOURCES
    ) -> RoutingChoice:
        return self._of(request.request_id).choose(request, ready, sources)

    def sent(self, replica: str, request: RoutingRequest) -> None:
        self._of(request.request_id).sent(replica, request)

    def began(
        self, replica: str, request_id: str, reused: Reused | None, timing: Timing | None
    ) -> None:
        self._of(request_id).began(replica, request_id, reused, timing)

    def ended(self, replica: str, request_id: str) -> None:
        self._of(request_id).ended(replica, request_id)

    def heard(self, replica: str, events: CacheEvents) -> None:
        for one in self._gateways:
            one.heard(replica, events)

    def gone(self, replica: str) -> None:
        for one in self._gateways:
            one.gone(replica)

    def known_blocks(self, replica: str) -> int:
        return self._gateways[0].known_blocks(replica)

    def _of(self, request_id: str) -> Router:
        """Return the router that chose for request `ID`, which may be given as `ID~p` (prefill)."""
        own = request_id.partition("~")[0]
        return self._gateways[crc32(own.encode()) % len(self._gateways)]
