"""Runs gateway and engine: reports events to `supervisor.decide` and carries out its decisions.

Knows: children, signals, the clock. Does not know: when to do what (`supervisor`), nor what the
children run.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from cli.child import Child
from cli.errors import ServingFailed
from cli.supervisor import (
    Action,
    Announce,
    ChildName,
    EngineReady,
    EngineSilent,
    Event,
    Exited,
    Kill,
    Phase,
    Policy,
    Say,
    StartEngine,
    State,
    StopRequested,
    Terminate,
    Tick,
    decide,
)

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Screen(Protocol):
    """Where the operator sees what happens."""

    def say(self, text: str) -> None:
        """Show a line of the supervisor's own."""
        ...

    def child_says(self, name: ChildName, line: str) -> None:
        """Pass on a line of a child's output."""
        ...

    def announce(self) -> None:
        """Show how to use what is being served."""
        ...


@dataclass(frozen=True, slots=True)
class Watched:
    """What is run and how it is watched."""

    commands: Mapping[ChildName, Sequence[str]]
    # Whether the engine takes requests; None: unknown. Must not raise.
    is_ready: Callable[[], Awaitable[bool | None]]
    policy: Policy = field(default_factory=Policy)
    poll_s: float = 0.2  # between two questions to `is_ready`


class Watch:
    """One gateway and its engines, from the start until all have ended."""

    def __init__(self, watched: Watched, screen: Screen) -> None:
        self._watched = watched
        self._screen = screen
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._children: dict[ChildName, Child] = {}
        self._exits: dict[ChildName, asyncio.Task[None]] = {}
        self._readiness: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Serve until asked to stop; ServingFailed when it ends for any other reason."""
        with self._signals_as_events():
            try:
                state = await self._until_done()
            finally:
                await self._sweep()
        if state.failure is not None:
            raise ServingFailed(state.failure)

    def request_stop(self) -> None:
        """What SIGTERM does."""
        self._events.put_nowait(StopRequested())

    async def _until_done(self) -> State:
        await self._start("gateway")
        await self._start("engine")
        state = State(engine_started_at=time.monotonic())
        while state.phase is not Phase.DONE:
            event = await self._next_event(state.wake_at)
            state, actions = decide(state, event, time.monotonic(), self._watched.policy)
            for action in actions:
                await self._do(action)
        return state

    async def _next_event(self, wake_at: float | None) -> Event:
        timeout = None if wake_at is None else max(0.0, wake_at - time.monotonic())
        try:
            return await asyncio.wait_for(self._events.get(), timeout)
        except TimeoutError:
            return Tick()

    async def _do(self, action: Action) -> None:
        match action:
            case StartEngine():
                await self._start("engine")
            case Terminate(name):
                self._children[name].terminate()
            case Kill(name):
                self._children[name].kill()
            case Announce():
                self._screen.announce()
            case Say(text):
                self._screen.say(text)

    async def _start(self, name: ChildName) -> None:
        child = await Child.start(
            self._watched.commands[name], lambda line: self._screen.child_says(name, line)
        )
        self._children[name] = child
        self._exits[name] = asyncio.create_task(self._report_exit(name, child))
        if name == "engine":
            self._forget_readiness()
            self._readiness = asyncio.create_task(self._report_ready())

    def _forget_readiness(self) -> None:
        if self._readiness is not None:
            self._readiness.cancel()

    async def _report_exit(self, name: ChildName, child: Child) -> None:
        self._events.put_nowait(Exited(name, await child.wait()))

    async def _report_ready(self) -> None:
        was_ready = False
        while True:
            is_ready = await self._watched.is_ready()
            if is_ready is not None and is_ready != was_ready:
                self._events.put_nowait(EngineReady() if is_ready else EngineSilent())
                was_ready = is_ready
            await asyncio.sleep(self._watched.poll_s)

    @contextmanager
    def _signals_as_events(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, self.request_stop)
        try:
            yield
        finally:
            for number in _STOP_SIGNALS:
                loop.remove_signal_handler(number)

    async def _sweep(self) -> None:
        for child in self._children.values():
            child.kill()
        self._forget_readiness()
        await asyncio.gather(*self._exits.values())
