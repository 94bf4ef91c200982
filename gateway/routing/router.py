"""The interface of routers: what replicas ask, and what routers are told.

    choose -> sent -> began -> ended         a request; `began` only if it had a first token
              heard ... heard                what a replica's cache holds, at any time
              gone                           a replica died: nothing of it is known any more

A request that is sent anew to another replica is chosen and sent again, and counts for the last one
alone. Calls about requests that a router does not know are ignored: their replica has gone.

Knows: names of replicas. Does not know: which of them are ready, connections, or retries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeAlias

from engine.link.cache_events import CacheEvents
from engine.link.messages import FetchSource, Reused, Timing
from gateway.routing.prompt import RoutingRequest

Sources: TypeAlias = Mapping[str, str]
"""Replicas that blocks may be fetched from, and the address of each one's exchange."""

NO_SOURCES: Sources = MappingProxyType({})


class RoutingChoice(NamedTuple):
    """The choice of where a request goes; None for what a router does not predict."""

    replica: str
    source: FetchSource | None = None  # what it is to fetch before it computes, where that pays
    computes: int | None = None  # prompt tokens that are left to compute there
    first_token_s: float | None = None  # seconds from now


class RouterEvents(Protocol):
    """The events that whoever routes is told. Belongs to one event loop.

    No call waits, and none raises for what an engine said.
    """

    def began(
        self, replica: str, request_id: str, reused: Reused | None, timing: Timing | None
    ) -> None:
        """Note that its first tokens came, with what they tell of it."""
        ...

    def ended(self, replica: str, request_id: str) -> None:
        """Note that it is over, however it ended, and whether it began or not."""
        ...

    def heard(self, replica: str, events: CacheEvents) -> None:
        """Note what has changed in the replica's cache, in order and without gaps."""
        ...

    def gone(self, replica: str) -> None:
        """Forget a replica that died or was replaced: what it held, did and was to do is void."""
        ...

    def known_blocks(self, replica: str) -> int:
        """Count the blocks that it is known to have; 0 where the router does not listen."""
        ...


class Router(RouterEvents, Protocol):
    """Belongs to one event loop. No call waits, and none raises for what an engine said."""

    def choose(
        self, request: RoutingRequest, ready: Sequence[str], sources: Sources = NO_SOURCES
    ) -> RoutingChoice:
        """Choose the replica for `request`: one of `ready`, which is not empty.

        It may be told to fetch from one of `sources`, which need not be ready. Notes nothing: the
        same call again gives the same answer, except from a router that draws or takes turns.
        """
        ...

    def sent(self, replica: str, request: RoutingRequest) -> None:
        """Note that `request` is on its way to `replica`, with the `source` chosen, if any."""
        ...
