"""A router to the replica that has cached most of the prompt, the least loaded among equals.

Routers that know only caches work like this. This router exists for comparisons.
"""

from collections.abc import Sequence

from engine.link.cache_events import CacheEvents
from gateway.routing.known.index import NOTHING, CacheIndex
from gateway.routing.prompt import RoutingRequest, prompt_of
from gateway.routing.router import NO_SOURCES, RoutingChoice, Sources
from gateway.routing.routers.least_outstanding import LeastOutstandingRouter


class CachedShareRouter(LeastOutstandingRouter):
    """A `Router` that compares only cached blocks. Belongs to one event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._index = CacheIndex()

    def choose(
        self, request: RoutingRequest, ready: Sequence[str], sources: Sources = NO_SOURCES
    ) -> RoutingChoice:
        found = self._index.find(prompt_of(request).keys, ready)
        most = max((found.get(replica, NOTHING).blocks for replica in ready), default=0)
        best = [replica for replica in ready if found.get(replica, NOTHING).blocks == most]
        return super().choose(request, best, sources)

    def heard(self, replica: str, events: CacheEvents) -> None:
        self._index.apply(replica, events)

    def gone(self, replica: str) -> None:
        super().gone(replica)
        self._index.forget(replica)

    def known_blocks(self, replica: str) -> int:
        return self._index.blocks(replica)
