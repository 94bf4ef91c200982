"""How long a new request would wait in an engine, by what the engine says of itself.

    prompt tokens that are not computed / tokens a second of its large steps
    and not less than the oldest request that waits has waited

The engine is asked and no gateway: of several gateways, each with several workers, every one knows
only what it has sent itself. What waiting prompts will find in the cache is not known before they
are scheduled, so they count whole.
"""

from __future__ import annotations

import time
from typing import Protocol

from engine.link.stats_messages import EngineStats
from engine.link.view_messages import Sequences

MOST_SEQUENCES = 1000
RATE_S = 30.0  # between two questions for the rates, which list all flows
RATE_CONTEXT = 1024  # tokens
NOT_MEASURED = 1e4  # tokens a second, of an engine that has computed nothing yet

_UNBEGUN = ("waiting", "loading", "prefill")


class WaitSource(Protocol):
    """Of an engine's client, what is asked here."""

    async def stats(self) -> EngineStats:
        """Its counters; raises EngineError."""
        ...

    async def sequences(self, limit: int) -> Sequences:
        """The sequences that are alive, the oldest first; raises EngineError."""
        ...


class PredictedWait:
    """Of one engine."""

    def __init__(self) -> None:
        self._rate = NOT_MEASURED
        self._rate_at = float("-inf")

    async def look(self, engine: WaitSource) -> float:
        """Seconds; raises EngineError."""
        now = time.monotonic()
        if now - self._rate_at >= RATE_S:
            self._rate_at = now
            rates = (await engine.stats()).tiers.prefill
            self._rate = rates.get(RATE_CONTEXT) or next(iter(rates.values()), NOT_MEASURED)
        return predicted(await engine.sequences(MOST_SEQUENCES), self._rate)


def predicted(found: Sequences, rate: float) -> float:
    """The wait in seconds at `rate` tokens a second. What is not listed is like what is."""
    unbegun = [one for one in found.sequences if one.state in _UNBEGUN]
    tokens = sum(one.prompt_tokens - one.cached_tokens for one in unbegun)
    listed = len(found.sequences)
    if listed:
        tokens = tokens * found.total // listed
    waited = max((one.age_s for one in unbegun if one.state == "waiting"), default=0.0)
    return max(tokens / rate, waited)
