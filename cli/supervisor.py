"""What to do when a child exits, a signal comes or time passes: decided here, done by `watch`.

The gateway runs from the start to the end; the engine is restarted when it dies, and ended when it
does not answer any more. At a stop the gateway goes first (it drains its streams), then the engine.

    SERVING --stop, give up--> DRAINING --gateway gone--> STOPPING --engine gone--> DONE
       `--gateway died---------------------------------------^

Knows: which child lives, how often the engine died and when something is due. Does not know:
processes, signals, sockets, nor a clock of its own: every event comes with its time in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Literal

from gateway.backoff import Backoff

ChildName = Literal["gateway", "engine"]


@dataclass(frozen=True, slots=True)
class Policy:
    """How patient the supervisor is. Seconds and counts."""

    backoff: Backoff = field(default_factory=Backoff)  # with an engine that dies
    max_unready_runs: int = 3  # deaths in a row before ever being ready: it will not get better
    hopeless_status: int = 2  # with which an engine says that it cannot start
    drain_s: float = 35.0  # for the gateway to stop; its own grace and a margin
    hurry_s: float = 5.0  # for the gateway to tell its streams that they end now
    stop_s: float = 10.0  # for the engine to stop
    silent_s: float = 5.0  # for an engine that does not answer to come back


class Phase(Enum):
    """How far the serving is."""

    SERVING = "serving"
    DRAINING = "draining"
    STOPPING = "stopping"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class State:
    """All that the decisions depend on."""

    phase: Phase = Phase.SERVING
    engine_alive: bool = True
    engine_ready: bool = False
    engine_silent: bool = False  # it was ready, it lives, and it does not answer
    engine_started_at: float = 0.0
    announced: bool = False
    hurried: bool = False  # the gateway was asked twice: it waits for nobody
    short_runs: int = 0  # of the engine, in a row
    unready_runs: int = 0  # likewise
    wake_at: float | None = None  # when a Tick is due
    failure: str | None = None  # why serving ended, when nobody asked it to


@dataclass(frozen=True, slots=True)
class Exited:
    """A child is gone; a negative status is the signal that killed it."""

    name: ChildName
    status: int


@dataclass(frozen=True, slots=True)
class EngineReady:
    """The gateway says that the engine takes requests."""


@dataclass(frozen=True, slots=True)
class EngineSilent:
    """The gateway says that the engine does not answer."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """SIGTERM or SIGINT; a second one means that nobody is waited for, a third one kills."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = Exited | EngineReady | EngineSilent | StopRequested | Tick


@dataclass(frozen=True, slots=True)
class StartEngine:
    """Start a new engine process."""


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask a child to end."""

    name: ChildName


@dataclass(frozen=True, slots=True)
class Kill:
    """End a child."""

    name: ChildName


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell the operator how to use what is being served."""


@dataclass(frozen=True, slots=True)
class Say:
    """Tell the operator something."""

    text: str


Action = StartEngine | Terminate | Kill | Announce | Say
Decision = tuple[State, list[Action]]


def decide(state: State, event: Event, at: float, policy: Policy) -> Decision:
    """The state after `event` at time `at`, and what is to be done about it."""
    match event:
        case Exited("engine", status):
            return _engine_exited(state, status, at, policy)
        case Exited(_, status):
            return _gateway_exited(state, status, at, policy)
        case EngineReady():
            return _ready(state)
        case EngineSilent():
            return _silent(state, at, policy)
        case StopRequested():
            return _stop_requested(state, at, policy)
        case Tick():
            return _tick(state, at)


def describe_status(status: int) -> str:
    """An exit status in words."""
    return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"


def _engine_exited(state: State, status: int, at: float, policy: Policy) -> Decision:
    was_ready, ran_s = state.engine_ready, at - state.engine_started_at
    state = replace(state, engine_alive=False, engine_ready=False, engine_silent=False)
    if state.phase is Phase.STOPPING:
        return _done(state), []
    if state.phase is not Phase.SERVING:
        return state, []
    state = replace(
        state,
        short_runs=0 if ran_s >= policy.backoff.healthy_after_s else state.short_runs + 1,
        unready_runs=0 if was_ready else state.unready_runs + 1,
    )
    if not state.announced and status == policy.hopeless_status:
        reason = "the engine cannot start; its own words are above"
        return _drain(replace(state, failure=reason), at, policy)
    if state.unready_runs >= policy.max_unready_runs:
        reason = (
            f"the engine {describe_status(status)}, {state.unready_runs} times in a row before "
            "it was ready; its own words are above"
        )
        return _drain(replace(state, failure=reason), at, policy)
    delay = policy.backoff.delay(state.short_runs)
    said = Say(f"the engine {describe_status(status)}; starting it again in {delay:g} s")
    return replace(state, wake_at=at + delay), [said]


def _gateway_exited(state: State, status: int, at: float, policy: Policy) -> Decision:
    if state.phase is Phase.SERVING:
        state = replace(state, failure=f"the gateway {describe_status(status)}")
    if state.phase is Phase.DONE or not state.engine_alive:
        return _done(state), []
    stopping = replace(state, phase=Phase.STOPPING, wake_at=at + policy.stop_s)
    return stopping, [Terminate("engine")]


def _ready(state: State) -> Decision:
    if state.phase is Phase.SERVING and state.engine_silent:
        return replace(state, engine_silent=False, wake_at=None), [Say("the engine answers again")]
    if state.phase is not Phase.SERVING or not state.engine_alive or state.engine_ready:
        return state, []
    action: Action = Say("the engine is back") if state.announced else Announce()
    return replace(state, engine_ready=True, announced=True, unready_runs=0), [action]


def _silent(state: State, at: float, policy: Policy) -> Decision:
    is_news = state.engine_ready and not state.engine_silent
    if state.phase is not Phase.SERVING or not is_news:
        return state, []
    said = Say("the engine does not answer")
    return replace(state, engine_silent=True, wake_at=at + policy.silent_s), [said]


def _stop_requested(state: State, at: float, policy: Policy) -> Decision:
    match state.phase:
        case Phase.SERVING:
            state, actions = _drain(state, at, policy)
            return state, [Say("stopping: open streams may finish"), *actions]
        case Phase.DRAINING if not state.hurried:
            due = at + policy.hurry_s
            hurried = replace(state, hurried=True, wake_at=min(state.wake_at or due, due))
            return hurried, [Say("stopping now: open streams are cut off"), Terminate("gateway")]
        case Phase.DRAINING:
            return state, [Kill("gateway")]
        case Phase.STOPPING:
            return state, [Kill("engine")]
        case Phase.DONE:
            return state, []


def _tick(state: State, at: float) -> Decision:
    if state.wake_at is None or at < state.wake_at:
        return state, []
    state = replace(state, wake_at=None)
    match state.phase:
        case Phase.SERVING if state.engine_alive:
            return state, [Say("ending the engine, which does not answer"), Kill("engine")]
        case Phase.SERVING:
            return replace(state, engine_alive=True, engine_started_at=at), [StartEngine()]
        case Phase.DRAINING:
            return state, [Say("the gateway does not stop; ending it"), Kill("gateway")]
        case Phase.STOPPING:
            return state, [Say("the engine does not stop; ending it"), Kill("engine")]
        case Phase.DONE:
            return state, []


def _drain(state: State, at: float, policy: Policy) -> Decision:
    draining = replace(state, phase=Phase.DRAINING, wake_at=at + policy.drain_s)
    return draining, [Terminate("gateway")]


def _done(state: State) -> State:
    return replace(state, phase=Phase.DONE, wake_at=None)
