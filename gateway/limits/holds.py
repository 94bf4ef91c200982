"""A tenant's running requests and what each holds, by their ids and by when they lapse.

No call walks them all: what it costs is of the holds that it gives back or changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Protocol

import msgspec


class Held(msgspec.Struct, frozen=True, array_like=True):
    """The tokens and cost that a running request holds. `until`: when it lapses, in us."""

    until: int
    tokens: int
    cost: int
    period: str | None


class Holds(Protocol):
    """The holds of one tenant, wherever they are kept."""

    def get(self, request_id: str) -> Held | None:
        """Find what a request holds, if it does."""
        ...

    def put(self, request_id: str, held: Held) -> None:
        """Add what a request holds that holds nothing; no other lapses later."""
        ...

    def take(self, request_id: str) -> Held | None:
        """Remove what a request holds, if it does."""
        ...

    def renew(self, request_ids: Sequence[str], until: int) -> None:
        """Let those of these requests that hold something lapse later than all others."""
        ...

    def lapse(self, now: int) -> Sequence[Held]:
        """Remove all whose time is over."""
        ...

    def shorten(self, latest: int) -> None:
        """Let none lapse later than `latest`."""
        ...


class MemoryHolds:
    """The holds in a dictionary, in the order in which they lapse."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}

    def __len__(self) -> int:
        """Count them."""
        return len(self._held)

    def get(self, request_id: str) -> Held | None:
        """Find what a request holds, if it does."""
        return self._held.get(request_id)

    def put(self, request_id: str, held: Held) -> None:
        """Add it at the end."""
        self._held[request_id] = held

    def take(self, request_id: str) -> Held | None:
        """Remove what a request holds, if it does."""
        return self._held.pop(request_id, None)

    def renew(self, request_ids: Sequence[str], until: int) -> None:
        """Move these to the end."""
        for request_id in request_ids:
            held = self.take(request_id)
            if held is not None:
                self.put(request_id, msgspec.structs.replace(held, until=until))

    def lapse(self, now: int) -> Sequence[Held]:
        """Remove the first ones, whose time is over."""
        over = _first(self._held.items(), lambda held: held.until <= now)
        return [self._held.pop(request_id) for request_id in over]

    def shorten(self, latest: int) -> None:
        """Let the last ones lapse at `latest`."""
        for request_id in _first(reversed(self._held.items()), lambda one: one.until > latest):
            held = self._held[request_id]
            self._held[request_id] = msgspec.structs.replace(held, until=latest)


def _first(items: Iterable[tuple[str, Held]], are_meant: Callable[[Held], bool]) -> list[str]:
    """List the ids of the items before the first that is not meant."""
    return [request_id for request_id, _ in takewhile(lambda item: are_meant(item[1]), items)]
