"""The Ray actor of an engine, which runs an engine host in a thread.

    started --> hosting --the engine dies--> this process ends, and Ray starts another, anywhere
                   |----the engine says that it can never start--> failed, with its reason
                   `----drained--> drained, until the actor is removed

The engine dies with the actor's process, because a thread of that process has started the engine.
No request and no token passes through the actor.
"""

import asyncio
import os
import sys
import threading
import time
from pathlib import Path
from typing import Literal

import msgspec

from cli.cluster.host import EngineHost, HostState
from cli.cluster.registry import open_registry
from cli.cluster.settings import ClusterSettings
from cli.errors import CliError
from cli.models.machine import machine
from cli.models.model_check import checked_source
from cli.serving.compose import BLOCKS_NAME, engine_config
from cli.serving.link_key import link_key_file
from engine.config import EngineConfig
from engine.link.address import exchange_at
from engine.link.messages import Role
from engine.process import EXIT_CANNOT_START, EXIT_NOT_SERVED
from gateway.telemetry.harmless import harmless

SHORT_RUN_S = 10.0
# seconds of pause after a run shorter than SHORT_RUN_S, in case every engine dies at once
PAUSE_S = 5.0

ActorState = HostState | Literal["failed", "drained"]


class EngineReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an engine.

    `why` is the reason why the engine failed, or why gateways do not find it.
    """

    state: ActorState
    address: str
    pid: int
    # predicted seconds that a new request waits for its first token
    wait_s: float | None = None
    used: float | None = None  # predicted use of the engine, 1 if fully used
    why: str = ""


class EngineActor:
    """The actor of one engine. Any thread may call its methods, which never block."""

    def __init__(self, settings: bytes, number: int, host: str) -> None:
        """Host an engine in a thread on machine `host`. `settings` is `ClusterSettings` in JSON."""
        self._settings = msgspec.json.decode(settings, type=ClusterSettings)
        self._number = number
        self.address = f"tcp://{host}:{self._settings.port(number)}"
        self._host: EngineHost | None = None
        self._loop = asyncio.new_event_loop()
        self._why = ""
        self._drains = False
        self._last_line = ""
        threading.Thread(target=self._run, name="engine-host", daemon=True).start()

    def report(self) -> bytes:
        """Return an `EngineReport` in JSON."""
        host = self._host
        predicted = None if host is None else host.predicted
        said = EngineReport(
            state=self._state(),
            address=self.address,
            pid=os.getpid(),
            wait_s=None if predicted is None else predicted.wait_s,
            used=None if predicted is None else predicted.used,
            why=self._why or ("" if host is None else host.unregistered),
        )
        return msgspec.json.encode(said)

    def drain(self) -> None:
        """Unregister the engine, and end it once its requests have ended."""
        self._drains = True
        if (host := self._host) is not None and host.state != "ended":
            asyncio.run_coroutine_threadsafe(host.stop(drain=True), self._loop)

    def _state(self) -> ActorState:
        if self._why:
            return "failed"
        state = "starting" if self._host is None else self._host.state
        return "drained" if state == "ended" and self._drains else state

    def _run(self) -> None:
        started = time.monotonic()
        try:
            status = self._loop.run_until_complete(self._run_engine())
        except CliError as error:
            self._why = error.message
            return
        finally:
            self._loop.close()
        if self._drains:
            return
        if status in (EXIT_CANNOT_START, EXIT_NOT_SERVED):
            self._why = self._last_line
            return
        if time.monotonic() - started < SHORT_RUN_S:
            time.sleep(PAUSE_S)
        os._exit(1)  # status 1: Ray restarts no actor that ends with 0

    async def _run_engine(self) -> int:
        settings = self._settings
        async with open_registry(Path(settings.data_dir), settings.shared) as registry:
            config = composed(settings, self._number, self.address)
            self._host = EngineHost(
                config, self.address, registry, self._show, predicts=settings.scaling is not None
            )
            if self._drains:
                return 0
            return await self._host.run()

    def _show(self, line: str) -> None:
        self._last_line = line
        sys.stderr.write(f"{harmless(line)}\n")


def composed(settings: ClusterSettings, number: int, address: str) -> EngineConfig:
    """Compose the config of an engine on this machine.

    Raises CliError if the engine cannot run here.
    """
    data_dir = Path(settings.data_dir)
    source = checked_source(settings.model, settings.engine, of=machine())
    given = settings.link_key_file
    key_file = link_key_file(address, None if given is None else Path(given), data_dir, make=False)
    exchange = exchange_at(address) if settings.engine.ranks.num_ranks == 1 else None
    engine = settings.engine.changed(exchange=exchange, role=_role(settings, number))
    config = engine_config(source, data_dir, address, engine)
    return config.changed(link_key_file=key_file, disk_cache_dir=_blocks_of(settings, number))


def _role(settings: ClusterSettings, number: int) -> Role:
    if not settings.prefill_engines:
        return settings.engine.process.role
    return "prefill" if number < settings.prefill_engines else "decode"


def _blocks_of(settings: ClusterSettings, number: int) -> str:
    blocks = Path(settings.engine.cache.disk_cache_dir or Path(settings.data_dir) / BLOCKS_NAME)
    return str(blocks.with_name(f"{blocks.name}-{number}").absolute())
