"""From an admitted request to the events of its answer: bounds, admission, generation, numbers.

Knows: the order of these. Does not know: wire formats or sockets.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from engine.client import Engine
from gateway.admission import Admission, Ask
from gateway.caller import Caller
from gateway.choice import Event
from gateway.generation import generating
from gateway.meter import Meter
from gateway.metrics import GatewayMetrics
from gateway.open_streams import OpenStreams


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request came from: its route's template, its caller, when (monotonic seconds)."""

    route: str
    caller: Caller
    arrived: float


class Answering:
    """Answers requests of any dialect."""

    def __init__(
        self,
        engine: Engine,
        admission: Admission,
        streams: OpenStreams,
        metrics: GatewayMetrics,
    ) -> None:
        self.admission = admission
        self._engine = engine
        self._streams = streams
        self._metrics = metrics

    @asynccontextmanager
    async def answer(
        self, ask: Ask, origin: Origin
    ) -> AsyncIterator[tuple[AsyncGenerator[Event, None], Meter]]:
        """Run `ask`: its events, and the meter that has seen them.

        Raises GatewayError for what may not run, EngineError for what broke. Leaving early
        cancels what still runs.
        """
        choices = len(ask.prompts) * ask.choices
        with self._streams.held(origin.caller.key_id, choices):
            admitted = await self.admission.admit(ask, origin.caller)
            meter = Meter(self._metrics, origin.route, admitted, origin.arrived, time.monotonic)
            with meter.measured():
                decoder = self.admission.tokenizer
                async with generating(self._engine, admitted, decoder, meter.see) as events:
                    yield events, meter
