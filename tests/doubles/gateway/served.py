"""The real gateway on a loopback port, in a thread, with an engine that the test chooses."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from engine.link.interface import Engine
from gateway.config import GatewayConfig
from gateway.dialects.dialect import Dialect
from gateway.http.protocol.server import Server, make_server
from gateway.limits.open_streams import OpenStreams
from gateway.startup.composition import DIALECTS, composed
from gateway.startup.first_start import METRICS_KEY, FirstStart, ensure_first_start, read_keys

MODEL = "tiny"


def config_of(model_dir: Path, data_dir: Path, **settings: Any) -> GatewayConfig:
    """Return the config of a gateway that serves `MODEL` on any port and ends without delay."""
    return GatewayConfig(
        model_dir=str(model_dir),
        model_name=MODEL,
        data_dir=str(data_dir),
        **{"engines": (), "port": 0, "grace_s": 1.0, **settings},
    )


@dataclass
class Served:
    """A running gateway."""

    port: int
    key: str
    other_key: str
    admin_key: str
    metrics_key: str
    streams: OpenStreams
    server: Server
    loop: asyncio.AbstractEventLoop

    def wait_idle(self, timeout: float = 60.0) -> bool:
        """Wait until no request of any key is running. Returns False after `timeout` seconds."""
        waiting = asyncio.run_coroutine_threadsafe(self._idle(), self.loop)
        try:
            waiting.result(timeout)
        except TimeoutError:
            waiting.cancel()
            return False
        return True

    async def _idle(self) -> None:
        while len(self.streams):  # noqa: ASYNC110 (counted by code that knows of no waiter)
            await asyncio.sleep(0.001)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class _Thread(threading.Thread):
    def __init__(self, config: GatewayConfig, engine: Engine, dialects: Sequence[Dialect]) -> None:
        super().__init__(name="gateway")
        self.config = config
        self.engine = engine
        self.dialects = dialects
        self.ready = threading.Event()
        self.served: Served | None = None
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            uvloop.run(self._main())
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self.ready.set()

    async def _main(self) -> None:
        keys = await ensure_first_start(
            Path(self.config.data_dir), clock=time.time, shared=self.config
        )
        async with composed(self.config, self.engine, dialects=self.dialects) as gateway:
            server = make_server(gateway.binds[0], self.config.bounds, self.config.grace_s)
            serving = asyncio.create_task(server.serve())
            while not server.started:  # noqa: ASYNC110 (uvicorn has no event for it)
                await asyncio.sleep(0.005)
            self.served = _served(server, keys, gateway.streams)
            self.ready.set()
            await serving


def _served(server: Server, keys: FirstStart, streams: OpenStreams) -> Served:
    assert keys.demo_key is not None
    assert keys.demo2_key is not None
    return Served(
        port=server.port,
        key=keys.demo_key,
        other_key=keys.demo2_key,
        admin_key=keys.admin_key,
        metrics_key=read_keys(keys.keys_file)[METRICS_KEY],
        streams=streams,
        server=server,
        loop=asyncio.get_running_loop(),
    )


@contextmanager
def serving(
    config: GatewayConfig, engine: Engine, dialects: Sequence[Dialect] = DIALECTS
) -> Iterator[Served]:
    """Start the gateway of `config`, which must have port 0; stop it at the end."""
    thread = _Thread(config, engine, dialects)
    thread.start()
    assert thread.ready.wait(120)  # long enough for a large tokenizer on a busy machine
    if thread.served is None:
        raise RuntimeError("the gateway did not start") from thread.failure
    try:
        yield thread.served
    finally:
        thread.served.server.should_exit = True
        thread.join(30)
