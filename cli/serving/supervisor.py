"""What to do when a child exits, a signal comes or time passes: decided here, done by `watch`.

Gateway and engines follow the same rules: a child that dies is started again, with a longer delay
after each short run; one that stops answering is ended, and so started again; one that was never
ready is given up after a few runs, and the server with it, unless another engine serves. At a stop
the gateway goes first (it drains its streams), then the engines.

    SERVING --stop, give up--> DRAINING --gateway gone--> STOPPING --engines gone--> DONE

At a restart the engines go one after the other: each finishes what it has, and is started again
once it has ended; the next one follows when all are ready.

Knows: which child lives, how often it died and when something is due. Does not know: processes,
signals, sockets, nor a clock of its own: every event comes with its time in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from gateway.backoff import Backoff

ChildName: TypeAlias = str  # "gateway"; all others are engines
ServingPhase = Literal["serving", "draining", "stopping", "done"]
RestartStep = Literal["waits", "ends", "starts"]
GATEWAY: ChildName = "gateway"
ENGINE: ChildName = "engine"


@dataclass(frozen=True)
class OfChild:
    """An event or an action of one child."""

    name: ChildName


@dataclass(frozen=True)
class Exited(OfChild):
    """A child is gone; a negative status is the signal that killed it."""

    status: int


@dataclass(frozen=True)
class Ready(OfChild):
    """A child answers: the gateway to HTTP; of an engine the gateway says so.

    `engine_id` is new for each process of an engine; None where it is not told.
    """

    engine_id: str | None = None


class Silent(OfChild):
    """A child does not answer."""


@dataclass(frozen=True)
class StopRequested:
    """SIGTERM or SIGINT; a second one ends the wait for streams, a third one kills."""


@dataclass(frozen=True)
class RestartRequested:
    """SIGUSR1: the engines are to be restarted, one after the other."""


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


class Start(OfChild):
    """Start a new process of a child."""


class Terminate(OfChild):
    """Ask a child to end."""


class Drain(OfChild):
    """Ask an engine to end once it has finished what it has."""


class Kill(OfChild):
    """End a child."""


@dataclass(frozen=True)
class Announce:
    """Tell the operator how to use what is being served."""


@dataclass(frozen=True)
class Say:
    """Tell the operator something."""

    text: str


Event = Exited | Ready | Silent | StopRequested | RestartRequested | Tick
Action = Start | Terminate | Drain | Kill | Announce | Say


@dataclass(frozen=True, slots=True)
class Patience:
    """How long one child is waited for. Seconds."""

    stop_s: float  # until it has stopped; its own grace and a margin
    silent_s: float  # until one that does not answer does so again


@dataclass(frozen=True, slots=True)
class Policy:
    """How patient the supervisor is. Seconds and counts."""

    backoff: Backoff = Backoff()  # with a child that dies
    max_unready_runs: int = 3  # deaths of one that was never ready: it will not get better
    hopeless_status: int = 2  # with which a child says that it cannot start
    refused_status: int = 3  # with which the engine says that it never will, for this model
    # A gateway that many clients keep busy may be slow to answer, and its end cuts their streams.
    gateway: Patience = Patience(stop_s=35.0, silent_s=30.0)
    # The gateway waits for an engine before it says that this does not answer.
    engine: Patience = Patience(stop_s=10.0, silent_s=5.0)
    hurry_s: float = 5.0  # for the gateway to tell its streams that they end now

    def patience(self, name: ChildName) -> Patience:
        """With this child."""
        return self.gateway if name == GATEWAY else self.engine


@dataclass(frozen=True, slots=True)
class ChildState:
    """One child's run, and what is known of those before it."""

    alive: bool = True
    ready: bool = False
    silent: bool = False  # it was ready, it lives, and it does not answer
    started_at: float = 0.0
    has_been_ready: bool = False  # in any run
    short_runs: int = 0  # in a row
    unready_runs: int = 0  # likewise
    engine_id: str | None = None  # as it was told of this run
    gone_id: str | None = None  # and of the run before
    due: float | None = None  # when it is killed if it lives, and started if it does not


@dataclass(frozen=True, slots=True)
class ServingState:
    """All that the decisions depend on."""

    phase: ServingPhase = "serving"
    gateway: ChildState = ChildState()
    engines: Mapping[ChildName, ChildState] = field(default_factory=lambda: {ENGINE: ChildState()})
    hurried: bool = False  # the gateway got a second signal: it waits for no stream
    failure: str | None = None  # why serving ended without a signal
    refused: bool = False  # because of the model: the engine has said why
    restarting: tuple[ChildName, ...] = ()  # engines that are to be restarted, in this order
    restart_step: RestartStep = "waits"  # what the first of these does

    @property
    def children(self) -> dict[ChildName, ChildState]:
        """All of them, the gateway first."""
        return {GATEWAY: self.gateway, **self.engines}

    def child(self, name: ChildName) -> ChildState:
        """What is known of this child."""
        return self.children[name]

    def having(self, name: ChildName, child: ChildState) -> ServingState:
        """The same but for this child."""
        if name == GATEWAY:
            return replace(self, gateway=child)
        return replace(self, engines={**self.engines, name: child})

    def is_restarting(self, name: ChildName, step: RestartStep) -> bool:
        """Whether this engine is the one being restarted, and does this."""
        return self.restarting[:1] == (name,) and self.restart_step == step

    @property
    def wake_at(self) -> float | None:
        """When a Tick is due."""
        return min((c.due for c in self.children.values() if c.due is not None), default=None)


Decision = tuple[ServingState, list[Action]]


def decide(state: ServingState, event: Event, at: float, policy: Policy) -> Decision:
    """The state after `event` at time `at`, and what is to be done about it."""
    match event:
        case Exited(name, status):
            return _exited(state, name, status, at, policy)
        case Ready(name, engine_id):
            return _ready(state, name, engine_id)
        case Silent(name):
            return _silent(state, name, at, policy)
        case StopRequested():
            return _stop_requested(state, at, policy)
        case RestartRequested():
            return _restart_requested(state)
        case Tick():
            return _tick(state, at)


def the(name: ChildName) -> str:
    """A child as it is spoken of: one of several engines by its name alone."""
    return name if name.startswith(f"{ENGINE}-") else f"the {name}"


def describe_status(status: int) -> str:
    """An exit status in words."""
    return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"


def _exited(
    state: ServingState, name: ChildName, status: int, at: float, policy: Policy
) -> Decision:
    if state.is_restarting(name, "ends"):
        return _drained(state, name, at)
    dead = _counted(state.child(name), at, policy)
    state = state.having(name, dead)
    if name == GATEWAY:  # the next one will say whether the engines answer
        engines = {name: _not_silent(engine) for name, engine in state.engines.items()}
        state = replace(state, engines=engines)
    if state.phase != "serving":
        return _go_on_stopping(state, at, policy)
    if (failure := _hopeless(state, name, status, policy)) is not None:
        refused = status == policy.refused_status
        return _stop(replace(state, failure=failure, refused=refused), at, policy)
    delay = policy.backoff.delay(dead.short_runs)
    said = Say(f"{the(name)} {describe_status(status)}; starting it again in {delay:g} s")
    return state.having(name, replace(dead, due=at + delay)), [said]


def _counted(child: ChildState, at: float, policy: Policy) -> ChildState:
    """The child after its run, which is over."""
    ran_s = at - child.started_at
    return replace(
        child,
        alive=False,
        ready=False,
        silent=False,
        engine_id=None,
        gone_id=child.engine_id or child.gone_id,
        due=None,
        short_runs=0 if ran_s >= policy.backoff.healthy_after_s else child.short_runs + 1,
        unready_runs=0 if child.ready else child.unready_runs + 1,
    )


def _not_silent(child: ChildState) -> ChildState:
    return replace(child, silent=False, due=None) if child.silent else child


def _hopeless(state: ServingState, name: ChildName, status: int, policy: Policy) -> str | None:
    """Why the child is not started again; None if it is.

    One that has been ready before is always started again: what keeps it from it may pass. So is
    an engine beside others that have been.
    """
    dead = state.child(name)
    beside = state.engines.values() if name != GATEWAY else ()
    if dead.has_been_ready or any(engine.has_been_ready for engine in beside):
        return None
    if status in (policy.hopeless_status, policy.refused_status):
        return f"{the(name)} cannot start; its own words are above"
    if dead.unready_runs < policy.max_unready_runs:
        return None
    return (
        f"{the(name)} {describe_status(status)}, {dead.unready_runs} times in a row before "
        "it was ready; its own words are above"
    )


def _ready(state: ServingState, name: ChildName, engine_id: str | None) -> Decision:
    child = state.child(name)
    if state.phase != "serving" or not child.alive:
        return state, []
    if engine_id is not None and engine_id == child.gone_id:
        return state, []  # the gateway has not noticed yet that this one has gone
    is_first = name != GATEWAY and not any(e.has_been_ready for e in state.engines.values())
    ready = replace(
        _not_silent(child), ready=True, has_been_ready=True, unready_runs=0, engine_id=engine_id
    )
    state = state.having(name, ready)
    if child.silent:
        return state, [Say(f"{the(name)} answers again")]
    if child.ready:
        return state, []
    said = f"{the(name)} is back" if child.has_been_ready else f"{the(name)} is ready"
    is_told = child.has_been_ready or (name != GATEWAY and not is_first)
    state, actions = _restarted(state, name)
    return state, [*([Announce()] if is_first else []), *([Say(said)] if is_told else []), *actions]


def _silent(state: ServingState, name: ChildName, at: float, policy: Policy) -> Decision:
    child = state.child(name)
    if state.phase != "serving" or child.silent or not child.ready:
        return state, []
    silent = replace(child, silent=True, due=at + policy.patience(name).silent_s)
    return state.having(name, silent), [Say(f"{the(name)} does not answer")]


def _stop_requested(state: ServingState, at: float, policy: Policy) -> Decision:
    match state.phase:
        case "serving":
            state, actions = _stop(state, at, policy)
            return state, [Say("stopping: open streams may finish"), *actions]
        case "draining" if not state.hurried:
            due = at + policy.hurry_s
            hurried = replace(state.gateway, due=min(state.gateway.due or due, due))
            after = replace(state, hurried=True, gateway=hurried)
            return after, [Say("stopping now: open streams are cut off"), Terminate(GATEWAY)]
        case "draining":
            return state, [Kill(GATEWAY)]
        case "stopping":
            return state, [Kill(name) for name, engine in state.engines.items() if engine.alive]
    return state, []


def _restart_requested(state: ServingState) -> Decision:
    if state.phase != "serving":
        return state, []
    if state.restarting:
        return state, [Say("the engines are being restarted already")]
    return _go_on_restarting(replace(state, restarting=tuple(state.engines)))


def _go_on_restarting(state: ServingState) -> Decision:
    """Let the next engine end, if all are ready: the others take what comes meanwhile."""
    name = state.restarting[0]
    away = [other for other, one in state.engines.items() if not one.ready or one.silent]
    if away:
        return state, [Say(f"restarting {the(name)} once {', '.join(map(the, away))} is ready")]
    said = Say(f"restarting {the(name)} once it has finished what it has begun")
    return replace(state, restart_step="ends"), [said, Drain(name)]


def _drained(state: ServingState, name: ChildName, at: float) -> Decision:
    """Start an engine that has ended to be restarted again, at once."""
    child = state.child(name)
    again = replace(
        child,
        ready=False,
        silent=False,
        engine_id=None,
        gone_id=child.engine_id or child.gone_id,
        started_at=at,
        due=None,
    )
    return replace(state.having(name, again), restart_step="starts"), [Start(name)]


def _restarted(state: ServingState, name: ChildName) -> Decision:
    """Go on with the restart of all, if there is one and it waited for this child."""
    if not state.restarting or state.restart_step == "ends":
        return state, []
    if state.is_restarting(name, "starts"):
        state = replace(state, restarting=state.restarting[1:], restart_step="waits")
        if not state.restarting:
            return state, [Say("all engines have been restarted")]
    if state.restart_step == "starts":
        return state, []
    return _go_on_restarting(state)


def _tick(state: ServingState, at: float) -> Decision:
    """Start or end each child that is due."""
    actions: list[Action] = []
    for name, child in state.children.items():
        if child.due is None or at < child.due:
            continue
        if child.alive:
            state = state.having(name, replace(child, due=None))
            silent = f"ending {the(name)}, which does not answer"
            said = silent if state.phase == "serving" else f"{the(name)} does not stop; ending it"
            actions += [Say(said), Kill(name)]
        else:
            state = state.having(name, replace(child, alive=True, started_at=at, due=None))
            actions.append(Start(name))
    return state, actions


def _stop(state: ServingState, at: float, policy: Policy) -> Decision:
    """Begin to stop: nothing is started or given time to answer any more."""
    due = at + policy.gateway.stop_s if state.gateway.alive else None
    gateway = replace(state.gateway, due=due)
    engines = {name: replace(engine, due=None) for name, engine in state.engines.items()}
    state = replace(state, phase="draining", gateway=gateway, engines=engines, restarting=())
    if not gateway.alive:
        return _go_on_stopping(state, at, policy)
    return state, [Terminate(GATEWAY)]


def _go_on_stopping(state: ServingState, at: float, policy: Policy) -> Decision:
    """The gateway first, then the engines, then nothing is left."""
    if state.gateway.alive:
        return state, []
    if not any(engine.alive for engine in state.engines.values()):
        return replace(state, phase="done"), []
    if state.phase == "stopping":  # the others have been asked to
        return state, []
    due = at + policy.engine.stop_s
    engines = {n: replace(one, due=due if one.alive else None) for n, one in state.engines.items()}
    asked: list[Action] = [Terminate(name) for name, engine in engines.items() if engine.alive]
    return replace(state, phase="stopping", engines=engines), asked
