"""A gateway that sends traces to a collector."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.doubles.engine.fake_engine import FakeEngine, saying
from tests.doubles.gateway.collector import Collector, collecting
from tests.doubles.gateway.served import MODEL, Served, config_of, serving

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


class Traced:
    """A gateway for one test that sends traces to a collector; the spans are complete after the
    gateway ends.
    """

    def __init__(self, tiny_model: Path, data_dir: Path) -> None:
        self.engine = FakeEngine()
        self.engine.script = saying("good day")
        self._tiny_model = tiny_model
        self._data_dir = data_dir

    def run(
        self, ask: Callable[[Served, httpx.Client], object], url: str | None = None
    ) -> list[Span]:
        """Run `ask` against a gateway; return all spans."""
        with collecting() as collector:
            with self.serving(url or collector.url) as served, self.client(served) as client:
                ask(served, client)
                assert served.wait_idle()
            self.collector: Collector = collector
        return collector.spans

    def serving(self, url: str | None) -> AbstractContextManager[Served]:
        """Run the gateway with traces sent to `url`."""
        config = config_of(self._tiny_model, self._data_dir, otlp_endpoint=url)
        return serving(config, self.engine)

    @staticmethod
    def client(served: Served) -> httpx.Client:
        """Make a client with the first tenant's key."""
        headers = {"authorization": f"Bearer {served.key}"}
        return httpx.Client(base_url=served.url, headers=headers, timeout=60)
