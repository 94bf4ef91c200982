"""A trace collector that is unreachable, or hangs, does not slow down requests."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from gateway.telemetry.span_export import collector, exporting
from tests.doubles.gateway.collector import collecting
from tests.gateway.support.traced import CHAT, Traced

# Far less than an export's timeout, and far more than a request takes.
SOON_S = 4.0


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Wait until the threads of an ended gateway have ended, so that the next test has none."""
    yield
    for thread in threading.enumerate():
        if "otel" in thread.name.lower() or "otlp" in thread.name:
            thread.join(20)
            assert not thread.is_alive()


def ask_often(traced: Traced, url: str, times: int = 20) -> tuple[set[int], float]:
    """Send requests to a gateway that traces to `url`; return their statuses, and the seconds the
    gateway took to end.
    """
    with traced.serving(url) as served, traced.client(served) as client:
        statuses = {
            client.post("/v1/chat/completions", json=CHAT).status_code for _ in range(times)
        }
        assert httpx.get(served.url + "/healthz").status_code == 200
        ended = time.monotonic()
    return statuses, time.monotonic() - ended


def test_an_unreachable_collector_delays_no_request(
    traced: Traced, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        statuses, took = ask_often(traced, url)
    assert statuses == {200}
    assert took < SOON_S


def test_somebody_listens_and_never_answers(
    traced: Traced, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "opentelemetry")
    with collecting() as hanging:
        hanging.hangs = True
        with traced.serving(hanging.url) as served, traced.client(served) as client:
            client.post("/v1/chat/completions", json=CHAT)
            assert hanging.asked.wait(20), "a span is on its way, and will not be taken"
            for _ in range(20):
                assert client.post("/v1/chat/completions", json=CHAT).status_code == 200
            assert httpx.get(served.url + "/healthz").status_code == 200
            ended = time.monotonic()
        assert time.monotonic() - ended < SOON_S
        assert len(hanging.raw) == 1, "it hung all the while"


def test_a_collector_that_is_stopped(traced: Traced, caplog: pytest.LogCaptureFixture) -> None:
    """Trace to a collector that is stopped: its machine accepts connections and bytes, but nothing
    reads them.
    """
    caplog.set_level(logging.CRITICAL, "opentelemetry")
    listening = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); "
    listening += "print(s.getsockname()[1], flush=True); time.sleep(600)"
    command = [sys.executable, "-c", listening]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as stopped:
        try:
            assert stopped.stdout is not None
            port = int(stopped.stdout.readline())
            stopped.send_signal(signal.SIGSTOP)
            statuses, took = ask_often(traced, f"http://127.0.0.1:{port}")
        finally:
            stopped.kill()
    assert statuses == {200}
    assert took < SOON_S


class Stuck(SpanExporter):
    """An exporter that takes one batch and never returns."""

    def __init__(self) -> None:
        self.taken = 0
        self.has_begun = threading.Event()
        self.let_go = threading.Event()

    def export(self, spans: object) -> SpanExportResult:
        assert isinstance(spans, list)
        assert all(isinstance(span, ReadableSpan) for span in spans)
        self.taken += len(spans)
        self.has_begun.set()
        self.let_go.wait()
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Do nothing."""


def test_what_waits_is_bounded_and_the_eldest_go(caplog: pytest.LogCaptureFixture) -> None:
    stuck = Stuck()
    with exporting(stuck) as tracer:
        for number in range(300):
            tracer.start_span(str(number)).end()
        assert stuck.has_begun.wait(20)
        for number in range(20_000):
            tracer.start_span(str(number)).end()
        assert stuck.taken == 256
        stuck.let_go.set()
    assert 256 < stuck.taken <= 256 + 44 + 4096


@pytest.mark.parametrize("end", ["", "/", "/v1/traces", "/v1/traces/"])
def test_the_endpoint_may_or_may_not_name_the_path(end: str) -> None:
    with collecting() as listening:
        with exporting(collector(listening.url + end)) as tracer:
            tracer.start_span("a").end()
        assert [span.name for span in listening.spans] == ["a"]


def answering(collector: socket.socket, piece: bytes, sent: list[int]) -> None:
    """Answer one export with endless pieces, until the client closes."""
    connection, _ = collector.accept()
    with connection, suppress(OSError):
        connection.recv(1 << 16)
        connection.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while sum(sent) < 1 << 30:
            connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
            sent.append(len(piece))


def test_an_answer_without_end_is_cut() -> None:
    sent: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        given = (listening, b"x" * 4096, sent)
        thread = threading.Thread(target=answering, args=given, daemon=True)
        thread.start()
        with exporting(collector(f"http://127.0.0.1:{listening.getsockname()[1]}")) as tracer:
            tracer.start_span("a").end()
        thread.join(20)
        assert not thread.is_alive(), "the gateway has closed the connection"
    assert 1 << 14 <= sum(sent) < 32 << 20, "what the sockets take beyond what is read"
