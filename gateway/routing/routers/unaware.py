"""The routers that ignore caches and queues, for comparison with other routers.

random         any replica
round-robin    one replica after another
session        by the first blocks of the prompt: the same replica as long as it is ready
"""

from collections.abc import Sequence
from hashlib import blake2b
from random import Random

from engine.link.cache_events import CacheEvents
from engine.link.event_messages import Reused, Timing
from gateway.routing.prompt import RoutingRequest
from gateway.routing.router import NO_SOURCES, RoutingChoice, Sources
from prefix_cache.hashing import KEY_BYTES


class Unaware:
    """The base of routers that ignore all events."""

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


class RandomRouter(Unaware):
    """A router that chooses at random."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def choose(
        self,
        request: RoutingRequest,  # noqa: ARG002
        ready: Sequence[str],
        sources: Sources = NO_SOURCES,  # noqa: ARG002
    ) -> RoutingChoice:
        return RoutingChoice(self._random.choice(ready))


class RoundRobinRouter(Unaware):
    """A router that chooses replicas in turn."""

    def __init__(self) -> None:
        self._turn = 0

    def choose(
        self,
        request: RoutingRequest,  # noqa: ARG002
        ready: Sequence[str],
        sources: Sources = NO_SOURCES,  # noqa: ARG002
    ) -> RoutingChoice:
        self._turn += 1
        return RoutingChoice(ready[self._turn % len(ready)])


class SessionRouter(Unaware):
    """A router by rendezvous hashing of the prompt's first blocks.

    When a replica comes or goes, only the sessions that this replica gets or had are moved.
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
