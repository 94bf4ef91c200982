"""The answering of a request: admission, limits, generation, accounting."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial

from engine.errors import InvalidGrammar
from engine.link.interface import Engine
from gateway.diagnosis.misses import LastMisses
from gateway.generation.choice import Event
from gateway.generation.generation import generating
from gateway.generation.turn_recorder import TurnRecorder
from gateway.http.request_head import RunningRequest
from gateway.prompts.generation_request import AdmittedRequest, GenerationRequest
from gateway.prompts.pipeline.admission import Admission
from gateway.requests.permits import Permit
from gateway.requests.request_charge import RequestCharge
from gateway.requests.request_metrics import RequestMetrics
from gateway.requests.tracing import UNTRACED, Tracing
from gateway.telemetry.metrics import GatewayMetrics
from gateway.usage.aggregator import UsageAggregator


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that is being generated: its events and its request metrics."""

    events: AsyncGenerator[Event, None]
    request_metrics: RequestMetrics


class Answering:
    """A generator of answers to requests of any dialect."""

    def __init__(
        self,
        engine: Engine,
        admission: Admission,
        metrics: GatewayMetrics,
        aggregator: UsageAggregator,
        tracing: Tracing | None,
        misses: LastMisses | None = None,
    ) -> None:
        self.admission = admission
        self._engine = engine
        self._metrics = metrics
        self._aggregator = aggregator
        self._tracing = tracing
        self._misses = misses

    @asynccontextmanager
    async def answer(
        self,
        generation_request: GenerationRequest,
        route: str,
        running: RunningRequest,
        permit: Permit,
        *,
        is_whole: bool = False,
    ) -> AsyncIterator[Answer]:
        """Run a request of the path template `route`, and give back its `permit` at the end.

        With `is_whole`, the caller is shown nothing before the end, so events may begin anew.
        Raises GatewayError if the request may not run, and EngineError if an engine fails. Leaving
        early cancels the choices that still run.
        """
        caller = permit.caller
        tracing = self._tracing
        trace = UNTRACED
        if tracing:
            streams = not is_whole
            trace = tracing.begin(generation_request, route, running, is_stream=streams)
        with trace.running():
            permit.choose(generation_request.at_once)
            writer = self._aggregator.writer(caller)
            admitted = await self.admission.admit(generation_request, caller, writer, permit.body)
            # only the token ids stay in memory while the request is answered
            del generation_request
            trace.admitted()
            admitted = await permit.extend(admitted)
            request_metrics = RequestMetrics(
                self._metrics, route, admitted, running.arrived, time.monotonic, trace
            )
            permit.settles(request_metrics.worked)
            try:
                charge = RequestCharge(self._aggregator, caller, writer, request_metrics)
                with self._charged(charge, request_metrics, running), request_metrics.measured():
                    decoder = self.admission.decoder(admitted)
                    see = self._seeing(admitted, request_metrics)
                    async with generating(
                        self._engine, admitted, decoder, see, charge.end, is_whole=is_whole
                    ) as events:
                        yield Answer(events, request_metrics)
            except InvalidGrammar as error:
                error.param = admitted.grammar_param
                raise
            finally:
                await permit.give_back()

    def _seeing(
        self, admitted: AdmittedRequest, request_metrics: RequestMetrics
    ) -> Callable[[Event], None]:
        recorder = None
        if admitted.origin is not None:
            recorder = TurnRecorder(partial(self.admission.remember, admitted.origin))
        has_begun = False

        def see(event: Event) -> None:
            nonlocal has_begun
            request_metrics.see(event)
            if not has_begun:
                has_begun = True
                self.admission.computed(admitted)
            if recorder is not None:
                recorder.see(event)

        return see

    @contextmanager
    def _charged(
        self, charge: RequestCharge, request_metrics: RequestMetrics, running: RunningRequest
    ) -> Iterator[None]:
        """Add the request's use to its caller's usage, however the request ends."""
        try:
            yield
        finally:
            running.used = request_metrics.use()
            missed = request_metrics.missed()
            if self._misses is not None and missed is not None:
                self._misses.add(charge.caller.tenant_id, running.shown_id, missed)
            charge.over()
