"""A gateway's end of the events of one engine's cache: they are passed on in order, or not at all.

    the number expected          passed on
    a lower one                  was there before: dropped
    a higher one                 passed on if it begins with `Cleared`; else there is a gap: a new
                                 snapshot is asked for, and what comes before it is dropped; where
                                 one more is missing, which may begin the snapshot, once more

Knows: numbers. Does not know: connections, or what the events are for.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.link.cache_events import CacheEvents, Cleared, EventsTaken, Subscribe

TAKEN_EVERY = 8  # messages; the engine lets four times as many be under way

Listener = Callable[[CacheEvents], None]


class CacheSubscription:
    """Subscription of one connection. Belongs to one event loop."""

    def __init__(self, listen: Listener, send: Callable[[Subscribe | EventsTaken], object]) -> None:
        self._listen = listen
        self._send = send
        self._expected = 0
        self._unheard = 0  # after the last one that came, whether it was passed on or dropped
        self._awaits_snapshot = False
        send(Subscribe())

    def receive(self, events: CacheEvents) -> None:
        """Pass on what is in order, and let the engine know how far all has come."""
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
