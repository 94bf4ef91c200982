"""What chooses a replica for each request.

Knows: requests, and what it hears of the replicas. Does not know: connections, or what happens to a
request whose replica is gone (`gateway.replicas`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.link.messages import Generate, Reused, Timing


class Router(Protocol):
    """Belongs to one event loop. Replicas have names."""

    def choose(self, request: Generate, ready: Sequence[str]) -> str:
        """The replica for this request, out of `ready`, which is not empty. Changes nothing."""
        ...

    def sent(self, replica: str, request: Generate) -> None:
        """The request is sent there now."""
        ...

    def began(
        self, replica: str, request_id: str, reused: Reused | None, timing: Timing | None
    ) -> None:
        """Its first tokens have come."""
        ...

    def ended(self, replica: str, request_id: str) -> None:
        """Nothing more comes of it from there; once for each `sent`, perhaps after `gone`."""
        ...

    def gone(self, replica: str) -> None:
        """The replica died or was restarted: nothing of it is known any more."""
        ...
