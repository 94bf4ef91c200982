"""An engine without a model that sends tokens at a fixed pace.

`python -m tests.doubles.engine.paced_engine SOCKET S`.

Every S seconds the engine sends one token of every sequence over the real link. Each step begins on
time, even if the gateway is late.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass

from engine.link.codec import Codec
from engine.link.engine_end.socket_link import SocketLink
from engine.link.event_messages import Finished, Reused, StepReply, Timing, Tokens
from engine.link.messages import Cancel, Generate, Hello, Welcome

SAID = b" the quick brown fox jumps over the lazy dog"


@dataclass(slots=True)
class Running:
    """A sequence that the engine runs."""

    request: Generate
    told: int = 0


class PacedEngine:
    """An engine that sends one token of every sequence every `step_s` seconds."""

    def __init__(self, socket: str, step_s: float) -> None:
        self._link = SocketLink(socket, codec=Codec())
        self._step_s = step_s
        self._running: dict[bytes, dict[str, Running]] = {}

    def run(self) -> None:
        """Serve until the process ends."""
        due = time.monotonic()
        while True:
            self._take()
            for client, running in self._running.items():
                if running:
                    self._link.send(client, StepReply([*_step(running)]))
            due = max(due + self._step_s, time.monotonic() - 1.0)
            while (left := due - time.monotonic()) > 0:
                self._take(left)

    def _take(self, timeout_s: float = 0.0) -> None:
        for client, message in self._link.receive(timeout_s=timeout_s):
            if isinstance(message, Hello):
                self._link.send(client, _WELCOME)
            elif isinstance(message, Generate):
                running = self._running.setdefault(client, {})
                running[message.request_id] = Running(message)
            elif isinstance(message, Cancel):
                self._running[client].pop(message.request_id, None)


_WELCOME = Welcome(
    engine_id="paced",
    fingerprint=b"fingerprint",
    vocab_size=260,
    block_size=16,
    max_model_len=1 << 20,
    eos_token_ids=(257,),
    device="none",
    dtype="none",
)


def _step(running: dict[str, Running]) -> Iterable[Tokens | Finished]:
    for request_id, one in list(running.items()):
        first = one.told == 0
        token = SAID[one.told % len(SAID)]
        one.told += 1
        yield Tokens(
            request_id=request_id,
            token_ids=(token,),
            reused=Reused() if first else None,
            timing=Timing(0.0, 0.0, 0.0, 0.0) if first else None,
        )
        if one.told == one.request.sampling.max_tokens:
            del running[request_id]
            yield Finished(
                request_id=request_id,
                reason="length",
                prompt_tokens=len(one.request.token_ids) // 4,
                completion_tokens=one.told,
            )


if __name__ == "__main__":
    PacedEngine(sys.argv[1], float(sys.argv[2])).run()
