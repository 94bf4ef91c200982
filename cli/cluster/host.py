"""The host of an engine process, which registers the engine while it is ready.

    starting --welcome--> ready <--silent, answers again--> silent --SILENT_S--> killed
                            `--asked to stop--> stopping: not registered any more, then drained

The host queries the engine over the link, as gateways do. The host does not restart an engine that
ends. The process that started the host restarts the engine, on this machine or on another machine.
"""

import asyncio
import logging
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from cli.cluster.wait import PredictedWait, Prediction
from cli.supervision.child import Child, OnLine, python_command
from engine.config import EngineConfig
from engine.errors import EngineError
from engine.link.gateway_end.client import EngineClient
from engine.link.tcp.curve import read_link_key
from gateway.errors import NotFound, Unavailable
from gateway.state.records import RegisteredEngine
from gateway.state.store import EngineRegistry

BEAT_S = 5.0
PREDICT_S = 1.0
ANSWER_S = 5.0
LOOK_S = 0.2
SILENT_S = 5.0  # seconds without a link to the engine after which the engine is killed
# seconds after an engine's last heartbeat until some host removes the engine's registration
FORGOTTEN_S = 3600.0

HostState = Literal["starting", "ready", "silent", "stopping", "ended"]

_LOG = logging.getLogger(__name__)


class EngineHost:
    """The host of one run of an engine. All calls must be made in one event loop."""

    def __init__(
        self,
        config: EngineConfig,
        address: str,
        registry: EngineRegistry,
        on_line: OnLine,
        *,
        predicts: bool = False,
    ) -> None:
        """Prepare to run an engine at `address`. `on_line` gets the engine's output lines.

        With `predicts`, the host queries the engine's queue, and predicts a new request's wait.
        """
        self.state: HostState = "starting"
        self.predicted: Prediction | None = None  # prediction for a new request; None: unknown
        # reason why gateways do not find the engine although it is ready, or ""
        self.unregistered = ""
        self._predicts = predicts
        self._config = config
        self._address = address
        self._registry = registry
        self._on_line = on_line
        self._child: Child | None = None
        self._is_registered = False
        self._beat_at = float("-inf")
        # time at which the link to a ready engine was lost, if it is down
        self._lost_at: float | None = None
        self._asked: Literal["terminate", "drain"] | None = None

    async def run(self) -> int:
        """Run the engine until it has ended, and return its exit status."""
        await self._forget_the_dead()
        command = python_command("engine", msgspec.json.encode(self._config).decode())
        child = self._child = await Child.start(command, self._on_line)
        client = self._client()
        await client.start()
        tasks = [asyncio.create_task(self._watch(child, client), name="engine-host")]
        if self._predicts:
            tasks.append(asyncio.create_task(self._predict(client), name="predicted-wait"))
        try:
            if self._asked is not None:
                self._ask(child)
            return await child.wait()
        finally:
            child.kill()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await client.close()
            await self._deregister()
            self.state = "ended"

    async def stop(self, *, drain: bool) -> None:
        """Unregister the engine and end it within its grace period, or with `drain` when idle.

        `drain` lets all requests end first. A later call without `drain` ends the engine earlier.
        """
        self.state = "stopping"
        self._asked = "drain" if drain else "terminate"
        await self._deregister()
        if self._child is not None:
            self._ask(self._child)

    def _ask(self, child: Child) -> None:
        if self._asked == "drain":
            child.drain()
        else:
            child.terminate()

    def _client(self) -> EngineClient:
        key_file = self._config.process.link_key_file
        key = None if key_file is None else read_link_key(Path(key_file))
        return EngineClient(self._config.process.socket, key=key)

    async def _watch(self, child: Child, client: EngineClient) -> None:
        while True:
            if self.state != "stopping":
                await self._look(child, client)
            await asyncio.sleep(LOOK_S)

    async def _look(self, child: Child, client: EngineClient) -> None:
        now, welcome = time.monotonic(), client.welcome
        if welcome is not None:
            self.state, self._lost_at = "silent" if client.is_stalled else "ready", None
            if self.state == "ready" and now - self._beat_at >= BEAT_S:
                self._beat_at = now
                await self._register(welcome.fingerprint.hex())
        elif self.state != "starting":
            self.state = "silent"
            self._lost_at = self._lost_at or now
            if now - self._lost_at >= SILENT_S:
                _LOG.error("the engine does not answer, and is ended")
                self.state = "stopping"
                child.kill()

    async def _predict(self, client: EngineClient) -> None:
        predicted = PredictedWait(self._config.steps.max_running)
        while True:
            try:
                async with asyncio.timeout(ANSWER_S):
                    self.predicted = await predicted.look(client)
            except (EngineError, TimeoutError):
                self.predicted = None
            await asyncio.sleep(PREDICT_S)

    async def _register(self, fingerprint: str) -> None:
        now = time.time()
        engine = RegisteredEngine(
            address=self._address, added_at=now, beat_at=now, fingerprint=fingerprint
        )
        try:
            await self._registry.register_engine(engine)
        except Unavailable as error:  # the next heartbeat may succeed
            self._complain(error)
            return
        self._is_registered, self.unregistered = True, ""
        if self.state == "stopping":  # `stop` was called while this task waited
            await self._deregister()

    def _complain(self, error: Unavailable) -> None:
        if not self.unregistered:
            _LOG.warning(
                "the engine cannot be registered, which is tried again every %g s: %s",
                BEAT_S,
                error,
            )
        self.unregistered = f"not registered: {error.code}"

    async def _deregister(self) -> None:
        if not self._is_registered:
            return
        self._is_registered = False
        # gateways notice the engine's end without the registry
        with suppress(NotFound, Unavailable):
            await self._registry.forget_engine(self._address)

    async def _forget_the_dead(self) -> None:
        with suppress(NotFound, Unavailable):
            for one in await self._registry.registered_engines():
                if one.beat_at is not None and time.time() - one.beat_at > FORGOTTEN_S:
                    await self._registry.forget_engine(one.address)
