"""The counters of routing: a gateway's metrics, or nothing.

Knows: names and numbers. Does not know: what they are counted with.
"""

from __future__ import annotations

from typing import Literal, Protocol

FetchReason = Literal["prefix", "prompt", "published"]
"""A cached prefix, a prompt that is computed there now, a published prefix for a new replica."""


class RoutingNotes(Protocol):
    """Belongs to one event loop."""

    def moved(self, replica: str) -> None:
        """Count that a request that `replica` had not begun is sent to another one."""
        ...

    def fetch(self, reason: FetchReason) -> None:
        """Count that a replica is told to fetch from another one."""
        ...

    def predicted(self, predicted_s: float, real_s: float) -> None:
        """Note that a first token has come, so long after its request was sent."""
        ...

    def routed_alone(self) -> None:
        """Count that a replica was chosen without the router process, which did not answer."""
        ...

    def snapshot(self, replica: str) -> None:
        """Count that a replica begins to tell its whole cache: it is new, or events are missing."""
        ...


class NoNotes:
    """`RoutingNotes` that nobody reads."""

    def moved(self, replica: str) -> None:
        pass

    def fetch(self, reason: FetchReason) -> None:
        pass

    def predicted(self, predicted_s: float, real_s: float) -> None:
        pass

    def routed_alone(self) -> None:
        pass

    def snapshot(self, replica: str) -> None:
        pass
