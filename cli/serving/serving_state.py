"""The values of the supervisor's decisions: events, actions, and what is known of each child.

Knows: names and fields. Does not know: what follows from an event (`supervisor`), or how an action
is carried out (`watch`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from gateway.processes.backoff import Backoff

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
    """The passing of time."""


class StartChild(OfChild):
    """The action of starting a new process of a child."""


class Terminate(OfChild):
    """The action of asking a child to end."""


class Drain(OfChild):
    """The action of asking an engine to end once it has finished what it has."""


class Kill(OfChild):
    """The action of ending a child."""


@dataclass(frozen=True)
class Announce:
    """The action of telling the operator how to use what is being served."""


@dataclass(frozen=True)
class Say:
    """A line for the operator."""

    text: str


Event = Exited | Ready | Silent | StopRequested | RestartRequested | Tick
Action = StartChild | Terminate | Drain | Kill | Announce | Say


@dataclass(frozen=True, slots=True)
class ChildPatience:
    """The time that one child is given, in seconds."""

    stop_s: float  # until it has stopped; its own grace and a margin
    silent_s: float  # until one that does not answer does so again


@dataclass(frozen=True, slots=True)
class Policy:
    """The supervisor's patience, in seconds and counts."""

    backoff: Backoff = Backoff()  # with a child that dies
    max_unready_runs: int = 3  # deaths of one that was never ready: it will not get better
    hopeless_status: int = 2  # with which a child says that it cannot start
    refused_status: int = 3  # with which the engine says that it never will, for this model
    # A gateway that many clients keep busy may be slow to answer, and its end cuts their streams.
    gateway: ChildPatience = ChildPatience(stop_s=35.0, silent_s=30.0)
    # The gateway waits for an engine before it says that this does not answer.
    engine: ChildPatience = ChildPatience(stop_s=10.0, silent_s=5.0)
    hurry_s: float = 5.0  # for the gateway to tell its streams that they end now

    def patience(self, name: ChildName) -> ChildPatience:
        """Return the patience with this child."""
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
        """Return what is known of this child."""
        return self.children[name]

    def having(self, name: ChildName, child: ChildState) -> ServingState:
        """Replace what is known of this child."""
        if name == GATEWAY:
            return replace(self, gateway=child)
        return replace(self, engines={**self.engines, name: child})

    def is_restarting(self, name: ChildName, step: RestartStep) -> bool:
        """Tell whether this engine is the one being restarted, at this step."""
        return self.restarting[:1] == (name,) and self.restart_step == step

    @property
    def wake_at(self) -> float | None:
        """The time at which a Tick is due, or None."""
        return min((c.due for c in self.children.values() if c.due is not None), default=None)


Decision = tuple[ServingState, list[Action]]
