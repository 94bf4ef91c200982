"""The OpenTelemetry spans of a request, with the attributes of the conventions for generative AI.

    chat MODEL | text_completion MODEL    from arrival to end
     |- admission                         key, limits, template, tokens, block keys
     |- queue |- match |- load |- prefill as the engine measured them, laid end to end
     `- stream                            from the first token to the end

The engine reports durations and knows nothing of traces. The phases come from the choice with the
earliest first token, since the other choices share its prompt. The time between the end of
`prefill` and the beginning of `stream` is the way from the engine to the gateway. Spans are created
when their times are known, so a streaming answer has no open span but the root.

A trace contains names, counts and times, and the client's id of the request if it sent an id. A
trace contains no text of a prompt or an answer, no key and no tenant. Of the caller's trace context
only `traceparent` is read, because `tracestate` and baggage are free text. `span_export.py` sends
spans.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from engine.link.event_messages import Timing
from gateway.errors import GatewayError
from gateway.http.request_head import RunningRequest
from gateway.prompts.generation_request import ChatPrompt, GenerationRequest

# The conventions for generative AI are not stable yet. Their names are therefore repeated here. A
# test compares the names with the installed package.
OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
MAX_TOKENS = "gen_ai.request.max_tokens"
TEMPERATURE = "gen_ai.request.temperature"
TOP_P = "gen_ai.request.top_p"
TOP_K = "gen_ai.request.top_k"
CHOICES = "gen_ai.request.choice.count"
STREAM = "gen_ai.request.stream"
FINISH_REASONS = "gen_ai.response.finish_reasons"
FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
WRITTEN_TOKENS = "gen_ai.usage.cache_creation.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
ROUTE = "http.route"
ERROR = "error.type"
CLIENT_ID = "http.request.header.x-request-id"

_PARENT = TraceContextTextMapPropagator()
_FINISHED = ("stop", "length")
_NOT_OUR_FAULT = (*_FINISHED, "cancelled")


class TracedUse(NamedTuple):
    """Token counts of a request. `written` counts tokens written to the cache for breakpoints."""

    prompt: int
    cached: int
    written: int
    generated: int
    reasoning: int


class RequestTracing:
    """A request's trace that records nothing. Each method is called at most once, in order."""

    def running(self) -> AbstractContextManager[None]:
        """Trace the request until the block ends, however it is left."""
        return nullcontext()

    def admitted(self) -> None:
        """Record that the request was sent to the engine."""

    def first_token(self, timing: Timing | None) -> None:
        """Record the first token. `timing` has the engine's phases in seconds, if reported."""

    def used(self, outcome: str, tokens: TracedUse) -> None:
        """Record an admitted request's end: its finish reason or error code, and its tokens."""


UNTRACED = RequestTracing()


class RequestTrace(RequestTracing):
    """The spans of one request. Times are monotonic seconds."""

    def __init__(self, tracer: Tracer, span: Span, arrived: float) -> None:
        self._tracer = tracer
        self._span = span
        self._context = set_span_in_context(span, Context())
        self._arrived = arrived
        self._admitted: float | None = None
        self._first: float | None = None
        self._outcome = "internal_error"

    @contextmanager
    def running(self) -> Iterator[None]:
        try:
            yield
        except GatewayError as refusal:
            self._outcome = refusal.code
            raise
        except (asyncio.CancelledError, GeneratorExit):
            self._outcome = "cancelled"
            raise
        finally:
            self._end()

    def admitted(self) -> None:
        self._admitted = time.monotonic()
        self._phase("admission", self._arrived, self._admitted)

    def first_token(self, timing: Timing | None) -> None:
        self._first = time.monotonic()
        self._span.set_attribute(FIRST_CHUNK, self._first - self._arrived)
        if timing is None or self._admitted is None:
            return
        begin = self._admitted
        for name, seconds in (
            ("queue", timing.queue),
            ("match", timing.match),
            ("load", timing.load),
            # fetching from another engine is rare
            *([("fetch", timing.fetch)] if timing.fetch else []),
            ("prefill", timing.prefill),
        ):
            self._phase(name, begin, begin + seconds)
            begin += seconds

    def used(self, outcome: str, tokens: TracedUse) -> None:
        self._outcome = outcome
        self._span.set_attributes(
            {
                INPUT_TOKENS: tokens.prompt,
                CACHED_TOKENS: tokens.cached,
                WRITTEN_TOKENS: tokens.written,
                OUTPUT_TOKENS: tokens.generated,
                REASONING_TOKENS: tokens.reasoning,
            }
        )

    def _end(self) -> None:
        now = time.monotonic()
        if self._first is not None:
            self._phase("stream", self._first, now)
        if self._outcome in _FINISHED:
            self._span.set_attribute(FINISH_REASONS, [self._outcome])
        else:
            self._span.set_attribute(ERROR, self._outcome)
        if self._outcome not in _NOT_OUR_FAULT:
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end(_nanoseconds(now))

    def _phase(self, name: str, begin: float, end: float) -> None:
        span = self._tracer.start_span(name, self._context, start_time=_nanoseconds(begin))
        span.end(_nanoseconds(end))


class Tracing:
    """The tracing of all requests to the served model."""

    def __init__(self, tracer: Tracer, model: str) -> None:
        self._tracer = tracer
        self._model = model

    def begin(
        self,
        generation_request: GenerationRequest,
        route: str,
        running: RunningRequest,
        *,
        is_stream: bool,
    ) -> RequestTrace:
        """Open the span of a request on `route`, as a child of the caller's span, if any.

        The span's trace context is written into `running`.
        """
        operation = _operation(generation_request)
        carrier = {} if running.traceparent is None else {"traceparent": running.traceparent}
        span = self._tracer.start_span(
            f"{operation} {self._model}",
            _PARENT.extract(carrier, Context()),
            SpanKind.SERVER,
            {
                OPERATION: operation,
                PROVIDER: "ratoon",
                REQUEST_MODEL: self._model,
                RESPONSE_MODEL: self._model,
                ROUTE: route,
                STREAM: is_stream,
                **({} if running.client_id is None else {CLIENT_ID: [running.client_id]}),
                **_settings(generation_request),
            },
            start_time=_nanoseconds(running.arrived),
        )
        running.traceresponse = _traceresponse(span)
        return RequestTrace(self._tracer, span, running.arrived)


def _operation(generation_request: GenerationRequest) -> str:
    if generation_request.embeds:
        return "embeddings"
    is_chat = isinstance(generation_request.prompts[0], ChatPrompt)
    return "chat" if is_chat else "text_completion"


def _settings(generation_request: GenerationRequest) -> dict[str, str | int | float]:
    """Select the request's numeric settings. Stop strings are the user's text and are left out."""
    sampling = generation_request.sampling
    settings: dict[str, str | int | float] = {
        RESPONSE_ID: generation_request.request_id,
        TEMPERATURE: sampling.temperature,
        TOP_P: sampling.top_p,
        TOP_K: sampling.top_k,
        CHOICES: len(generation_request.prompts) * generation_request.choices,
    }
    if not generation_request.max_tokens_may_shrink:
        settings[MAX_TOKENS] = sampling.max_tokens
    return settings


def _traceresponse(span: Span) -> str:
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def _nanoseconds(moment: float) -> int:
    return time.time_ns() - int((time.monotonic() - moment) * 1e9)
