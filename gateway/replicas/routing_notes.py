"""The counters to which routing reports: a gateway's metrics, or no counters."""

from typing import Literal, Protocol

FetchReason = Literal["prefix", "prompt", "published"]
"""What is fetched: a cached prefix, a prompt being computed, or a prefix for a new replica."""


class RoutingNotes(Protocol):
    """The receiver of routing's counts. Belongs to one event loop."""

    def moved(self, replica: str) -> None:
        """Count a request that `replica` had not begun and that is sent to another replica."""
        ...

    def fetch(self, reason: FetchReason) -> None:
        """Count that a replica is told to fetch from another replica."""
        ...

    def predicted(self, predicted_s: float, real_s: float) -> None:
        """Record a request's time from sending to first token, as predicted and as measured."""
        ...

    def routed_alone(self) -> None:
        """Count a route that a worker chose itself because the router process did not answer."""
        ...

    def snapshot(self, replica: str) -> None:
        """Count a snapshot of a replica's whole cache, sent by a new replica or after a gap."""
        ...


class NoNotes:
    """Routing notes that count nothing."""

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
