"""From a request to the events of its answer: bounds, admission, limits, generation, accounting.

Knows: the order of these. Does not know: wire formats or sockets.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial

from engine.interface import Engine
from engine.messages import Failed, Finished
from gateway.admission import Admission, Ask
from gateway.caller import Caller
from gateway.choice import Event
from gateway.generation import generating
from gateway.limits.gate import LimitGate
from gateway.limits.standing import Standing
from gateway.meter import Meter
from gateway.metrics import GatewayMetrics
from gateway.open_streams import OpenStreams
from gateway.request_head import TraceLink
from gateway.state.records import Counters
from gateway.tracing import NoTracing, Tracing
from gateway.usage import Tally


@dataclass(frozen=True, slots=True)
class Origin:
    """A request's route (its template), its caller, and when it arrived (monotonic seconds).

    `link` has the caller's trace, and receives the name of the answer's.
    """

    route: str
    caller: Caller
    arrived: float
    link: TraceLink


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer on its way: its events, its meter, and what is left of the tenant's limits."""

    events: AsyncGenerator[Event, None]
    meter: Meter
    standing: Standing


class Answering:
    """Answers requests of any dialect."""

    def __init__(
        self,
        engine: Engine,
        admission: Admission,
        streams: OpenStreams,
        limits: LimitGate,
        metrics: GatewayMetrics,
        tally: Tally,
        tracing: Tracing | None = None,
    ) -> None:
        self.admission = admission
        self._limits = limits
        self._engine = engine
        self._streams = streams
        self._metrics = metrics
        self._tally = tally
        self._tracing = tracing or NoTracing()

    @asynccontextmanager
    async def answer(self, ask: Ask, origin: Origin) -> AsyncIterator[Answer]:
        """Run `ask` within its tenant's limits.

        Raises GatewayError for what may not run, EngineError for what broke. Leaving early
        cancels what still runs.
        """
        choices = len(ask.prompts) * ask.choices
        trace = self._tracing.begin(ask, origin.route, origin.arrived, origin.link)
        with trace.running(), self._streams.held(origin.caller.tenant_id, choices):
            writer = self._tally.writer(origin.caller)
            admitted = await self.admission.admit(ask, origin.caller, writer)
            trace.admitted()
            meter = Meter(
                self._metrics, origin.route, admitted, origin.arrived, time.monotonic, trace
            )
            async with self._limits.held(origin.caller, admitted, meter.worked) as standing:
                with self._charged(origin.caller, writer, meter), meter.measured():
                    decoder = self.admission.tokenizer
                    late = partial(self._count_late, origin.caller, writer)
                    running = generating(self._engine, admitted, decoder, meter.see, late)
                    async with running as events:
                        yield Answer(events, meter, standing)

    @contextmanager
    def _charged(self, caller: Caller, writer: str, meter: Meter) -> Iterator[None]:
        """Add what the request used to its caller's usage, however it ends."""
        try:
            yield
        finally:
            used, took = meter.worked(), meter.took()
            self._tally.add(
                caller,
                Counters(
                    requests=1,
                    computed_tokens=used.computed,
                    cached_tokens=used.cached,
                    generated_tokens=used.generated,
                    engine_ms=_ms(took.engine),
                    saved_ms=_ms(took.saved),
                ),
            )
            for one in meter.written_and_read():
                self._tally.settle_cache(writer, one)

    def _count_late(self, caller: Caller, writer: str, end: Finished | Failed) -> None:
        """Add what the engine tells of a choice that failed, or that the gateway ended before."""
        if isinstance(end, Finished):
            self._tally.add(caller, Counters(engine_ms=_ms(end.engine_seconds)))
        self._tally.settle_cache(writer, end.cache)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
