"""The export of spans to a collector: OTLP over HTTP, from a separate thread.

A collector that is slow, hangs or is down delays no request. Spans wait in a queue, which drops the
oldest spans when it is full. Shutdown waits for at most `_SHUTDOWN_S`. At most `_MOST_ANSWERED`
bytes of a collector's answer are read. OpenTelemetry's standard variables also apply:
OTEL_EXPORTER_OTLP_HEADERS (a collector's credentials), OTEL_EXPORTER_OTLP_CERTIFICATE,
OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER. Only a gateway that traces imports this file, with
OpenTelemetry's SDK and exporter.

Elsewhere: what a span contains (`requests/tracing.py`).
"""

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from io import BytesIO
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Tracer
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter

_PATH = "/v1/traces"
_MAX_WAITING = 4096  # maximum number of waiting spans; a request makes seven
_MAX_BATCH = 256  # maximum number of spans encoded at once; more would delay the event loop
_EXPORT_S = 5.0
_DELAY_MS = 2000
_SHUTDOWN_S = 2.0
_MAX_ATTRIBUTE_CHARS = 256
_MOST_ANSWERED = 64 << 10  # maximum bytes of an answer that are read; usual answers are empty


@contextmanager
def exporting(exporter: SpanExporter) -> Iterator[Tracer]:
    """Yield a tracer whose spans go to `exporter`. Shut both down at the end, within 2 s."""
    provider = TracerProvider(
        resource=Resource({"service.name": "ratoon-gateway"}).merge(
            OTELResourceDetector().detect()
        ),
        shutdown_on_exit=False,
        span_limits=SpanLimits(max_attribute_length=_MAX_ATTRIBUTE_CHARS),
    )
    provider.add_span_processor(
        BatchSpanProcessor(
            exporter,
            max_queue_size=_MAX_WAITING,
            schedule_delay_millis=_DELAY_MS,
            max_export_batch_size=_MAX_BATCH,
        )
    )
    try:
        yield provider.get_tracer("ratoon")
    finally:
        shutdown = threading.Thread(target=provider.shutdown, name="otlp-shutdown", daemon=True)
        shutdown.start()
        shutdown.join(_SHUTDOWN_S)
        if shutdown.is_alive():
            exporter.shutdown()  # ends the retries


def collector(endpoint: str) -> SpanExporter:
    """Make an exporter to the collector at `endpoint`, a URL with or without `/v1/traces`."""
    base = endpoint.rstrip("/")
    url = base if base.endswith(_PATH) else base + _PATH
    session = Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, _BoundedAnswers())
    return OTLPSpanExporter(endpoint=url, timeout=_EXPORT_S, session=session)


class _BoundedAnswers(HTTPAdapter):
    """An HTTP adapter that reads only the beginning of each answer, without decoding it."""

    def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
        """Send a request; return its answer, cut at a number of bytes and seconds."""
        answer = super().send(request, *args, **{**options, "stream": True})
        with closing(answer.raw) as raw:
            answer.raw = BytesIO(_beginning_of(raw))
        return answer


def _beginning_of(raw: Any) -> bytes:
    found, end = b"", time.monotonic() + _EXPORT_S
    while len(found) < _MOST_ANSWERED and time.monotonic() < end:
        part = raw.read1(_MOST_ANSWERED - len(found), decode_content=False)
        if not part:
            break
        found += part
    return found
