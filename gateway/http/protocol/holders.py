"""The holders of a port's connections: unauthenticated peers, tenants, the operator.

For a new connection, a full port closes a connection of the holder that has most connections.
Unauthenticated peers count as one holder, which loses its oldest connection, idle or not. A tenant
loses the connection that has been idle longest. Unauthenticated peers therefore cannot keep anybody
out, and a holder with few connections loses none.

A connection on which a tenant's request runs is never closed for another connection. On a nearly
full port, a tenant that holds more than half of the connections is refused requests on new
connections.
"""

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from gateway.errors import TooManyRequests
from gateway.http.body_memory import OPERATOR

STRANGERS = "?"  # the holder of unauthenticated connections; no tenant has this id


class HeldConnection(Protocol):
    """A connection as `Holders` sees it."""

    @property
    def is_idle(self) -> bool:
        """True if no request is running on the connection."""
        ...


C = TypeVar("C", bound=HeldConnection)


class Holders(Generic[C]):
    """The connections of one port, by holder. Used in one event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        # connections by holder, the most recently used connection last
        self._held: dict[str, dict[C, None]] = {}
        self._owners: dict[C, str] = {}

    def enter(self, one: C) -> C | None:
        """Add a connection; return the connection to close, or None if the port has room."""
        self._put(one, STRANGERS)
        if len(self._owners) <= self._most:
            return None
        gone = next((other for other in self._spare() if other is not one), one)
        self.leave(gone)
        return gone

    def leave(self, one: C) -> None:
        """Remove a connection. Removing it again does nothing."""
        owner = self._owners.pop(one, None)
        if owner is not None:
            held = self._held[owner]
            del held[one]
            if not held:
                del self._held[owner]

    def tell(self, one: C, owner: str) -> None:
        """Record that a request on the connection `one` has a key of `owner`.

        Raises TooManyRequests if the port is nearly full and the tenant holds more than half of the
        port's connections.
        """
        if one not in self._owners:
            return  # the connection has closed meanwhile
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
        most_first = sorted(
            self._held.items(), key=lambda item: (len(item[1]), item[0] == STRANGERS), reverse=True
        )
        for owner, held in most_first:
            yield from (one for one in held if owner == STRANGERS or one.is_idle)
