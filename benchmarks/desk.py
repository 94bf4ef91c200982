"""A link without a socket, for an engine in this process.

Knows: what is to be received, and the first tokens of what is sent. Does not know: requests.
"""

from __future__ import annotations

import time

from engine.link import Incoming
from engine.messages import FromEngine, StepReply, ToEngine, Tokens


class Desk:
    """A `Link` of one list; of what the engine sends only the first tokens are kept."""

    dropped_frames = 0

    def __init__(self) -> None:
        self.first: Tokens | None = None
        self._incoming: list[Incoming] = []

    def say(self, message: ToEngine) -> None:
        """Let the engine find a message."""
        self._incoming.append(Incoming(b"me", message))

    def receive(self, *, timeout_s: float) -> list[Incoming]:
        """All that was said, at once; waits as a socket would."""
        if not self._incoming:
            time.sleep(timeout_s)
        incoming, self._incoming = self._incoming, []
        return incoming

    def send(self, client: bytes, message: FromEngine) -> bool:
        """Keep the first tokens."""
        del client
        if self.first is None and isinstance(message, StepReply):
            tokens = (event for event in message.events if isinstance(event, Tokens))
            self.first = next(tokens, None)
        return True
