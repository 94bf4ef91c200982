"""The interface of routers: the questions that replicas ask, and the events that they report.

    choose -> sent -> began -> ended         a request; `began` only if it had a first token
              heard ... heard                what a replica's cache holds, at any time
              gone                           a replica died: everything about it is dropped

A request that goes to another replica gets a new `choose` and `sent`, and counts only for that
replica. Calls about unknown requests are ignored, since their replica has gone.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeAlias

from engine.link.cache_events import CacheEvents
from engine.link.event_messages import Reused, Timing
from engine.link.messages import FetchSource
from gateway.routing.prompt import RoutingRequest

Sources: TypeAlias = Mapping[str, str]
"""The replicas from which blocks may be fetched, with the addresses of their exchanges."""

NO_SOURCES: Sources = MappingProxyType({})


class RoutingChoice(NamedTuple):
    """The replica chosen for a request. Values that a router does not predict are None."""

    replica: str
    # the source from which the replica first fetches blocks, if fetching pays
    source: FetchSource | None = None
    computes: int | None = None
    first_token_s: float | None = None  # predicted seconds from now to the first token


class RouterEvents(Protocol):
    """The events that are reported to a router. Belongs to one event loop.

    No call waits, and no call raises because of an engine's report.
    """

    def began(
        self, replica: str, request_id: str, reused: Reused | None, timing: Timing | None
    ) -> None:
        """Record that a request's first tokens have come, with the times that they report."""
        ...

    def ended(self, replica: str, request_id: str) -> None:
        """Record that a request is over, however it ended."""
        ...

    def heard(self, replica: str, events: CacheEvents) -> None:
        """Record changes of a replica's cache, in order and without gaps."""
        ...

    def gone(self, replica: str) -> None:
        """Forget a replica that died or was replaced: its cache, its rates and its requests."""
        ...

    def known_blocks(self, replica: str) -> int:
        """Count the known blocks of a replica; 0 if the router receives no cache events."""
        ...


class Router(RouterEvents, Protocol):
    """A router among replicas. Belongs to one event loop. No call waits, and none raises."""

    def choose(
        self, request: RoutingRequest, ready: Sequence[str], sources: Sources = NO_SOURCES
    ) -> RoutingChoice:
        """Choose the replica for `request`: one of `ready`, which is not empty.

        The replica may fetch from one of `sources`, which need not be ready. The call records
        nothing. A repeated call gives the same answer, unless the router draws at random or takes
        turns.
        """
        ...

    def sent(self, replica: str, request: RoutingRequest) -> None:
        """Record that `request` was sent to `replica`, with the chosen `source`, if any."""
        ...
