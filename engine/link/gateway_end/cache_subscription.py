"""A gateway's subscription to one engine's cache events. It passes the events on in order.

number as expected     pass on
lower number           drop: the message has arrived before
higher number          pass on if the message begins with `Cleared`, else drop: messages are
                       missing. Ask for a snapshot, and drop all messages before it. Ask again
                       if another message is missing, which may have begun the snapshot.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.link.cache_events import CacheEvents, Cleared, EventsTaken, Subscribe

# Messages per confirmation; the engine stops after four times as many unconfirmed messages.
TAKEN_EVERY = 8

Listener = Callable[[CacheEvents], None]


class CacheSubscription:
    """The subscription over one connection. Used by one event loop only."""

    def __init__(self, listen: Listener, send: Callable[[Subscribe | EventsTaken], object]) -> None:
        self._listen = listen
        self._send = send
        self._expected = 0
        self._unheard = 0
        self._awaits_snapshot = False
        send(Subscribe())

    def receive(self, events: CacheEvents) -> None:
        """Pass on events that are in order, and confirm all received events to the engine."""
        if events.number < self._expected:
            return
        if self._is_usable(events):
            self._expected, self._awaits_snapshot = events.number + 1, False
            self._listen(events)
        elif not self._awaits_snapshot or events.number > self._unheard:
            self._awaits_snapshot = True
            self._send(Subscribe())
        self._unheard = max(self._unheard, events.number + 1)
        if events.number % TAKEN_EVERY == TAKEN_EVERY - 1:
            self._send(EventsTaken(events.number))

    def _is_usable(self, events: CacheEvents) -> bool:
        if events.changes and isinstance(events.changes[0], Cleared):
            return True
        return events.number == self._expected and not self._awaits_snapshot
