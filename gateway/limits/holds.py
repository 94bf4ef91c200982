"""A tenant's holds by request id and by the time at which they lapse.

A call takes time only for the holds that it returns or changes, not for all holds.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Protocol

import msgspec


class Held(msgspec.Struct, frozen=True, array_like=True):
    """The tokens and cost that a running request has reserved.

    The hold lapses at the time `until`, in us.
    """

    until: int
    tokens: int
    cost: int
    period: str | None


class Holds(Protocol):
    """The holds of one tenant, wherever they are stored."""

    def get(self, request_id: str) -> Held | None:
        """Return the hold of a request, or None."""
        ...

    def put(self, request_id: str, held: Held) -> None:
        """Add the hold of a request that has no hold yet. The new hold must lapse last of all."""
        ...

    def take(self, request_id: str) -> Held | None:
        """Remove and return the hold of a request, or return None."""
        ...

    def renew(self, request_ids: Sequence[str], until: int) -> None:
        """Let these requests' holds lapse at `until`, after all other holds."""
        ...

    def lapse(self, now: int) -> Sequence[Held]:
        """Remove and return all holds whose time is over."""
        ...

    def shorten(self, latest: int) -> None:
        """Let holds that would lapse after `latest` lapse at `latest`."""
        ...


class MemoryHolds:
    """The holds of one tenant in a dictionary, in the order in which they lapse."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def get(self, request_id: str) -> Held | None:
        return self._held.get(request_id)

    def put(self, request_id: str, held: Held) -> None:
        self._held[request_id] = held

    def take(self, request_id: str) -> Held | None:
        return self._held.pop(request_id, None)

    def renew(self, request_ids: Sequence[str], until: int) -> None:
        for request_id in request_ids:
            held = self.take(request_id)
            if held is not None:
                self.put(request_id, msgspec.structs.replace(held, until=until))

    def lapse(self, now: int) -> Sequence[Held]:
        over = _first(self._held.items(), lambda held: held.until <= now)
        return [self._held.pop(request_id) for request_id in over]

    def shorten(self, latest: int) -> None:
        for request_id in _first(reversed(self._held.items()), lambda one: one.until > latest):
            held = self._held[request_id]
            self._held[request_id] = msgspec.structs.replace(held, until=latest)


def _first(items: Iterable[tuple[str, Held]], are_meant: Callable[[Held], bool]) -> list[str]:
    return [request_id for request_id, _ in takewhile(lambda item: are_meant(item[1]), items)]
