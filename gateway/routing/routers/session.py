"""A router by sessions, which ignores caches and queues."""

from collections.abc import Sequence
from hashlib import blake2b

from engine.link.cache_events import CacheEvents
from engine.link.event_messages import Reused, Timing
from gateway.routing.prompt import RoutingRequest
from gateway.routing.router import NO_SOURCES, RoutingChoice, Sources
from prefix_cache.hashing import KEY_BYTES


class SessionRouter:
    """A router by rendezvous hashing of the prompt's first blocks.

    A session stays at its replica as long as this replica is ready. When a replica comes or goes,
    only the sessions that this replica gets or had are moved.
    """

    def __init__(self, blocks: int) -> None:
        """Treat prompts whose first `blocks` blocks are equal as one session."""
        self._bytes = blocks * KEY_BYTES

    def choose(
        self,
        request: RoutingRequest,
        ready: Sequence[str],
        sources: Sources = NO_SOURCES,  # noqa: ARG002
    ) -> RoutingChoice:
        begin = request.block_keys[: self._bytes][-KEY_BYTES:]
        return RoutingChoice(
            max(ready, key=lambda one: (blake2b(one.encode(), key=begin).digest(), one))
        )

    def sent(self, replica: str, request: RoutingRequest) -> None:
        pass

    def began(
        self, replica: str, request_id: str, reused: Reused | None, timing: Timing | None
    ) -> None:
        pass

    def ended(self, replica: str, request_id: str) -> None:
        pass

    def heard(self, replica: str, events: CacheEvents) -> None:
        pass

    def gone(self, replica: str) -> None:
        pass

    def known_blocks(self, replica: str) -> int:  # noqa: ARG002
        return 0
