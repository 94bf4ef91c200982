"""A link of an engine in memory."""

from __future__ import annotations

import time
from collections import defaultdict

from engine.link.engine_end.socket_link import Incoming
from engine.link.event_messages import Event, StepReply, Tokens
from engine.link.messages import FromEngine, ToEngine


class MemoryLink:
    """A `Link` in memory: messages that tests put in, and the core's messages by client."""

    def __init__(self, *, sleeps: bool = False) -> None:
        """Create a link. With `sleeps`, waiting takes a moment, so that other threads run."""
        self.sleeps = sleeps
        self.dropped_frames = 0
        self.sent: defaultdict[bytes, list[FromEngine]] = defaultdict(list)
        self.waits: list[float] = []
        self.gone: set[bytes] = set()
        self._incoming: list[Incoming] = []

    def say(self, message: ToEngine, client: bytes = b"gateway") -> None:
        """Add a message that the core receives next."""
        self._incoming.append(Incoming(client, message))

    def receive(self, *, timeout_s: float) -> list[Incoming]:
        self.waits.append(timeout_s)
        if timeout_s and self.sleeps and not self._incoming:
            time.sleep(min(timeout_s, 0.001))
        incoming, self._incoming = self._incoming, []
        return incoming

    def send(self, client: bytes, message: FromEngine) -> bool:
        if client in self.gone:
            return False
        self.sent[client].append(message)
        return True

    def events(self, request_id: str, client: bytes = b"gateway") -> list[Event]:
        """Return all events of a request, in order."""
        return [
            event
            for message in self.sent[client]
            if isinstance(message, StepReply)
            for event in message.events
            if event.request_id == request_id
        ]

    def tokens(self, request_id: str, client: bytes = b"gateway") -> list[int]:
        """Return all tokens of a request, in order."""
        events = self.events(request_id, client)
        return [t for event in events if isinstance(event, Tokens) for t in event.token_ids]

    def last(self, request_id: str, client: bytes = b"gateway") -> Event:
        """Return the event that ended a request. Fail unless it is the last event and only end."""
        events = self.events(request_id, client)
        ends = [event for event in events if not isinstance(event, Tokens)]
        assert len(ends) == 1, f"{request_id} ended {len(ends)} times"
        assert events[-1] is ends[0]
        return ends[0]
