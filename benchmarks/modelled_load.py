"""The clients of a modelled engine. They send a workload's chains of requests, several at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from cli.load.phases import Chain, prompts_of
from engine.link.event_messages import Event, Failed, Finished
from tests.doubles.modelled.replay import Replay, request

# seconds from an answer's last token until the engine has the client's next request
ON_THE_WAY_S = 5e-3
FLOW = "tenant"  # all requests are in one flow, as if they had one API key


@dataclass
class WorkloadDrive:
    """The chains of a phase, of which `concurrency` run at once."""

    replay: Replay
    chains: Iterator[Chain]
    cached_tokens: int = 0
    prompt_tokens: int = 0
    firsts: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    running: int = 0
    _number: count[int] = field(default_factory=count)

    def start(self) -> None:
        """Start the next chain, if there is any."""
        chain = next(self.chains, None)
        if chain is not None:
            self.running += 1
            self._ask(prompts_of(chain))

    def _ask(self, prompts: Iterator[tuple[list[int], int]]) -> None:
        asked = next(prompts, None)
        if asked is None:
            self.running -= 1
            self.start()
            return
        time = self.replay.time
        time.at(time.now + ON_THE_WAY_S, lambda: self._say(*asked, prompts))

    def _say(
        self, prompt: list[int], output: int, prompts: Iterator[tuple[list[int], int]]
    ) -> None:
        last = self.replay.time.now
        is_first = True

        def hear(event: Event) -> None:
            nonlocal last, is_first
            if isinstance(event, Failed):
                raise RuntimeError(f"a request failed: {event.message}")
            if isinstance(event, Finished):
                self.cached_tokens += event.reused.tokens
                self.prompt_tokens += event.prompt_tokens
                self._ask(prompts)
                return
            now = self.replay.time.now
            (self.firsts if is_first else self.gaps).append(now - last)
            last, is_first = now, False

        asked = request(str(next(self._number)), FLOW, np.array(prompt, np.int32), output)
        self.replay.link.say(asked, hear)


def warmed(replay: Replay) -> Replay:
    """Run a long prompt as a warm-up, and return the replay."""
    one = replay.stream(FLOW, 4096, 8)
    one.start()
    replay.run(lambda: one.finished > 0)
    one.is_asking = False
    return replay
