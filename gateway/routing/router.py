"""What a set of replicas asks of a router, and what it tells it.

    choose -> sent -> began -> ended         a request; `began` only if it had a first token
              heard ... heard                what a replica's cache holds, at any time
              gone                           a replica died: nothing of it is known any more

A request that is sent anew to another replica is chosen and sent again, and counts for the last one
alone. Calls about requests that a router does not know are ignored: their replica has gone.

Knows: names of replicas. Does not know: which of them are ready, connections, or retries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.link.cache_events import CacheEvents
from engine.link.messages import Generate, Reused, Timing


class Router(Protocol):
    """Belongs to one event loop. No call waits, and none raises for what an engine said."""

    def choose(self, request: Generate, ready: Sequence[str]) -> str:
        """The replica to send `request` to: one of `ready`, which is not empty.

        Notes nothing: the same call again gives the same answer, except from a router that draws
        or takes turns.
        """
        ...

    def sent(self, replica: str, request: Generate) -> None:
        """`request` is on its way to `replica`."""
        ...

    def began(
        self, replica: str, request_id: str, reused: Reused | None, timing: Timing | None
    ) -> None:
        """Its first tokens came, with what they tell of it."""
        ...

    def ended(self, replica: str, request_id: str) -> None:
        """It is over, however it ended, and whether it began or not."""
        ...

    def heard(self, replica: str, events: CacheEvents) -> None:
        """What has changed in the replica's cache, in order and without gaps."""
        ...

    def gone(self, replica: str) -> None:
        """The replica died or was replaced: what it held, did and was to do is void."""
        ...
