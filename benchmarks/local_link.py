"""A link without a socket, to an engine that runs in this process.

Knows: messages that wait for the engine, and the first `Tokens` that it sent. Does not know:
requests.
"""

from __future__ import annotations

import time

from engine.link import Incoming
from engine.messages import FromEngine, StepReply, ToEngine, Tokens


class LocalLink:
    """An engine `Link` over a list; of what the engine sends only the first `Tokens` are kept."""

    dropped_frames = 0

    def __init__(self) -> None:
        self.first: Tokens | None = None
        self._incoming: list[Incoming] = []

    def say(self, message: ToEngine) -> None:
        """Queue a message for the engine."""
        self._incoming.append(Incoming(b"me", message))

    def receive(self, *, timeout_s: float) -> list[Incoming]:
        """All queued messages; waits for `timeout_s` when there are none, as a socket would."""
        if not self._incoming:
            time.sleep(timeout_s)
        incoming, self._incoming = self._incoming, []
        return incoming

    def send(self, client: bytes, message: FromEngine) -> bool:
        """Keep the first `Tokens`."""
        del client
        if self.first is None and isinstance(message, StepReply):
            tokens = (event for event in message.events if isinstance(event, Tokens))
            self.first = next(tokens, None)
        return True
