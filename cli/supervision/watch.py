"""The runner of gateway and engines: it passes events to `supervisor.decide`, and runs actions."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from cli.errors import ModelRefused, ServingFailed
from cli.supervision.child import Child
from cli.supervision.serving_state import (
    GATEWAY,
    Action,
    Announce,
    ChildName,
    ChildState,
    Drain,
    Event,
    Exited,
    Kill,
    Policy,
    Ready,
    RestartRequested,
    Say,
    ServingState,
    Silent,
    StartChild,
    StopRequested,
    Terminate,
    Tick,
)
from cli.supervision.supervisor import decide

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
RESTART_SIGNAL = signal.SIGUSR1


class Screen(Protocol):
    """The output that shows events to the operator."""

    def say(self, text: str) -> None:
        """Show a line from the supervisor."""
        ...

    def child_says(self, name: ChildName, line: str) -> None:
        """Show a line from a child's output."""
        ...

    def announce(self) -> None:
        """Show how to use the server."""
        ...


Probed = Mapping[ChildName, bool | str | None]
"""For each child, whether it answers, or the id of the engine that answers; None: unknown."""


@dataclass(frozen=True, slots=True)
class WatchedChild:
    """The commands to run, and how to watch their processes."""

    commands: Mapping[ChildName, Sequence[str]]
    probe: Callable[[], Awaitable[Probed]]  # returns which children answer; raises no errors
    policy: Policy = field(default_factory=Policy)
    poll_s: float = 0.2
    rest_s: float = 1.0  # seconds between two probes while all children answer


class Watch:
    """The watch over gateway and engines, from the first start until all have ended."""

    def __init__(self, watched: WatchedChild, screen: Screen) -> None:
        self._watched = watched
        self._screen = screen
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._children: dict[ChildName, Child] = {}
        self._exits: dict[ChildName, asyncio.Task[None]] = {}
        self._probing: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Serve until asked to stop. Raises ServingFailed if serving ends for another reason.

        Raises ModelRefused with an empty message if the engine has refused the model and printed
        why.
        """
        with self._signals_as_events():
            try:
                state = await self._until_done()
            finally:
                await self._sweep()
        if state.refused:
            raise ModelRefused("")
        if state.failure is not None:
            raise ServingFailed(state.failure)

    def request_stop(self) -> None:
        """Request a stop, as SIGTERM does."""
        self._events.put_nowait(StopRequested())

    def request_restart(self) -> None:
        """Request a restart of the engines, as SIGUSR1 does."""
        self._events.put_nowait(RestartRequested())

    async def _until_done(self) -> ServingState:
        engines = [name for name in self._watched.commands if name != GATEWAY]
        for name in (GATEWAY, *engines):
            await self._start(name)
        started = ChildState(started_at=time.monotonic())
        state = ServingState(gateway=started, engines=dict.fromkeys(engines, started))
        while state.phase != "done":
            event = await self._next_event(state.wake_at)
            state, actions = decide(state, event, time.monotonic(), self._watched.policy)
            for action in actions:
                await self._do(action)
        return state

    async def _next_event(self, wake_at: float | None) -> Event:
        timeout = None if wake_at is None else max(0.0, wake_at - time.monotonic())
        try:
            async with asyncio.timeout(timeout):
                return await self._events.get()
        except TimeoutError:
            return Tick()

    async def _do(self, action: Action) -> None:
        match action:
            case StartChild(name):
                await self._start(name)
            case Terminate(name):
                self._children[name].terminate()
            case Drain(name):
                self._children[name].drain()
            case Kill(name):
                self._children[name].kill()
            case Announce():
                self._screen.announce()
            case Say(text):
                self._screen.say(text)

    async def _start(self, name: ChildName) -> None:
        self._stop_probing()  # earlier probes do not apply to the new process
        child = await Child.start(
            self._watched.commands[name], lambda line: self._screen.child_says(name, line)
        )
        self._children[name] = child
        self._exits[name] = asyncio.create_task(self._report_exit(name, child))
        self._probing = asyncio.create_task(self._report_answers())

    def _stop_probing(self) -> None:
        if self._probing is not None:
            self._probing.cancel()

    async def _report_exit(self, name: ChildName, child: Child) -> None:
        self._events.put_nowait(Exited(name, await child.wait()))

    async def _report_answers(self) -> None:
        """Probe the children for ever. Queue an event when a child begins or ceases to answer."""
        watched, known = self._watched, dict[ChildName, bool | str]()
        while True:
            probed = await watched.probe()
            for name, answers in probed.items():
                if answers is not None and answers != known.get(name):
                    known[name] = answers
                    self._events.put_nowait(_event(name, answers))
            all_answer = all(probed.get(name) for name in watched.commands)
            await asyncio.sleep(watched.rest_s if all_answer else watched.poll_s)

    @contextmanager
    def _signals_as_events(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, self.request_stop)
        loop.add_signal_handler(RESTART_SIGNAL, self.request_restart)
        try:
            yield
        finally:
            for number in (*_STOP_SIGNALS, RESTART_SIGNAL):
                loop.remove_signal_handler(number)

    async def _sweep(self) -> None:
        for child in self._children.values():
            child.kill()
        self._stop_probing()
        await asyncio.gather(*self._exits.values())


def _event(name: ChildName, answers: bool | str) -> Event:
    if isinstance(answers, str):
        return Ready(name, answers)
    return Ready(name) if answers else Silent(name)
