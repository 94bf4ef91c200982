"""The queue of one request's events, between the link and the task that reads them."""

from __future__ import annotations

import asyncio

from engine.errors import EngineError
from engine.link.event_messages import Event, Tokens


class EventQueue:
    """The unread events of one request.

    `asyncio.Queue` takes three times as long. This queue has no maximum size, because its reader
    never waits for a slow client.
    """

    __slots__ = ("_events", "_waiter")

    def __init__(self) -> None:
        self._events: list[Event | EngineError] = []
        self._waiter: asyncio.Future[None] | None = None

    @property
    def has_any(self) -> bool:
        """True if there are unread events."""
        return bool(self._events)

    def put(self, event: Event | EngineError) -> None:
        """Add an event without waiting."""
        self._events.append(event)
        if self._waiter is not None:
            if not self._waiter.done():
                self._waiter.set_result(None)
            self._waiter = None

    async def take(self) -> list[Event | EngineError]:
        """Return all unread events. Wait if there are none. Only one task may read."""
        if not self._events:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        events, self._events = self._events, []
        return events

    async def ended(self) -> None:
        """Drop events until the request's last event or error has arrived."""
        while all(isinstance(event, Tokens) for event in await self.take()):
            pass
