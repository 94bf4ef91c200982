"""The holders of a port's connections: unauthenticated peers, tenants, the operator.

A full port takes a connection from whoever holds most of it, for the one that comes. Strangers
count as one: of theirs the oldest goes, whatever it does. Of a tenant's the one goes that has been
idle for longest. So strangers cannot keep anybody out, however many they are, and who holds no more
than others loses nothing.

What answers a tenant's requests is not taken away. But where the port is nearly full, a tenant that
holds more than half of it is given no more: the rest is for others.

Knows: connections, whose they are, and whether they are idle. Does not know: bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from gateway.errors import TooManyRequests
from gateway.http.body_memory import OPERATOR

STRANGERS = "?"  # no tenant has this id


class HeldConnection(Protocol):
    """A connection, as far as its holder matters."""

    @property
    def is_idle(self) -> bool:
        """True if no request is under way on it."""
        ...


C = TypeVar("C", bound=HeldConnection)


class Holders(Generic[C]):
    """The connections of one port. For one event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[str, dict[C, None]] = {}  # each one's: last the one that was used last
        self._owners: dict[C, str] = {}

    def enter(self, one: C) -> C | None:
        """Take in a connection; which one has to go for it, itself perhaps. None: there is room."""
        self._put(one, STRANGERS)
        if len(self._owners) <= self._most:
            return None
        gone = next((other for other in self._spare() if other is not one), one)
        self.leave(gone)
        return gone

    def leave(self, one: C) -> None:
        """Let go of it; again is nothing."""
        owner = self._owners.pop(one, None)
        if owner is not None:
            held = self._held[owner]
            del held[one]
            if not held:
                del self._held[owner]

    def tell(self, one: C, owner: str) -> None:
        """Note that a request on `one` bears a key of `owner`.

        Raises TooManyRequests where the port is nearly full and a tenant holds more than half.
        """
        if one not in self._owners:
            return  # it has gone meanwhile
        self.leave(one)
        self._put(one, owner)
        is_nearly_full = len(self._owners) > self._most - self._most // 8
        if is_nearly_full and owner != OPERATOR and len(self._held[owner]) > self._most // 2:
            raise TooManyRequests(
                f"of {self._most} connections a tenant may hold {self._most // 2} while nearly all "
                "are in use",
                code="too_many_connections",
                retry_after_s=1.0,
            )

    def _put(self, one: C, owner: str) -> None:
        self._owners[one] = owner
        self._held.setdefault(owner, {})[one] = None

    def _spare(self) -> Iterator[C]:
        """Yield connections that may go, the first one first."""
        most_first = sorted(
            self._held.items(), key=lambda item: (len(item[1]), item[0] == STRANGERS), reverse=True
        )
        for owner, held in most_first:
            yield from (one for one in held if owner == STRANGERS or one.is_idle)
