"""A collector of traces on a loopback port: it receives OTLP over HTTP, and may never answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

Value = str | int | float | list[str]


class Collector:
    """The requests that the collector has received. Any thread may read them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.raw: list[bytes] = []
        self.asked = threading.Event()  # set once a request has arrived
        self.hangs = False
        self.closed = threading.Event()

    @property
    def spans(self) -> list[Span]:
        """All spans, in the order of arrival."""
        return [
            span
            for body in self.raw
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def take(self, body: bytes) -> None:
        """Store a request's body, and return at the time when the request is to be answered."""
        self.raw.append(body)
        self.asked.set()
        if self.hangs:
            self.closed.wait()


def attributes(span: Span) -> dict[str, Value]:
    """Return a span's attributes as Python values."""
    return {pair.key: _value(pair.value) for pair in span.attributes}


def _value(value: object) -> Value:
    kind = value.WhichOneof("value")  # type: ignore[attr-defined]
    if kind == "array_value":
        return [item.string_value for item in value.array_value.values]  # type: ignore[attr-defined]
    found: Value = getattr(value, kind)
    return found


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector while the context is open."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    collector = Collector(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield collector
    finally:
        collector.closed.set()
        server.shutdown()
        server.server_close()
        thread.join()
