"""The values of the supervisor's decisions: events, actions, and the state of each child.

`supervisor` decides on events, and `watch` runs actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from gateway.processes.backoff import Backoff

ChildName: TypeAlias = str  # "gateway", or an engine's name
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
    """The event that a child has exited. A negative status is the signal that killed it."""

    status: int


@dataclass(frozen=True)
class Ready(OfChild):
    """The event that a child answers: the gateway by HTTP, an engine by the gateway's report.

    `engine_id` is new for each process of an engine, or None if the gateway does not report it.
    """

    engine_id: str | None = None


class Silent(OfChild):
    """The event that a child does not answer."""


@dataclass(frozen=True)
class StopRequested:
    """The event of SIGTERM or SIGINT.

    A second signal ends the wait for streams, and a third signal kills the children.
    """


@dataclass(frozen=True)
class RestartRequested:
    """The event of SIGUSR1, a request to restart the engines one after another."""


@dataclass(frozen=True)
class Tick:
    """The event that time has passed."""


class StartChild(OfChild):
    """The action of starting a new process of a child."""


class Terminate(OfChild):
    """The action of asking a child to end."""


class Drain(OfChild):
    """The action of asking an engine to end once its requests have ended."""


class Kill(OfChild):
    """The action of killing a child."""


@dataclass(frozen=True)
class Announce:
    """The action of showing the operator how to use the server."""


@dataclass(frozen=True)
class Say:
    """The action of printing a line for the operator."""

    text: str


Event = Exited | Ready | Silent | StopRequested | RestartRequested | Tick
Action = StartChild | Terminate | Drain | Kill | Announce | Say


@dataclass(frozen=True, slots=True)
class ChildPatience:
    """The time limits of a child, in seconds."""

    stop_s: float  # time to stop: the child's grace period plus a margin
    silent_s: float  # time in which a silent child must answer again


@dataclass(frozen=True, slots=True)
class Policy:
    """The supervisor's limits, in seconds and counts."""

    backoff: Backoff = Backoff()  # pauses between restarts of a child that dies
    max_unready_runs: int = 3  # maximum number of deaths of a child that was never ready
    hopeless_status: int = 2
    refused_status: int = 3
    # A long time, because a gateway with many clients may answer slowly, and its end would cut
    # their streams.
    gateway: ChildPatience = ChildPatience(stop_s=35.0, silent_s=30.0)
    # A short time, because the gateway itself waits before it reports that an engine does not
    # answer.
    engine: ChildPatience = ChildPatience(stop_s=10.0, silent_s=5.0)
    hurry_s: float = 5.0

    def patience(self, name: ChildName) -> ChildPatience:
        """Return the time limits of this child."""
        return self.gateway if name == GATEWAY else self.engine


@dataclass(frozen=True, slots=True)
class ChildState:
    """The state of a child's present run, and counts of its earlier runs."""

    alive: bool = True
    ready: bool = False
    silent: bool = False  # whether the child was ready, lives, and does not answer
    started_at: float = 0.0
    has_been_ready: bool = False
    short_runs: int = 0
    unready_runs: int = 0
    engine_id: str | None = None  # the engine's id in the present run, if known
    gone_id: str | None = None  # the engine's id in the run before
    # time at which a living child is killed, or an ended child is restarted
    due: float | None = None


@dataclass(frozen=True, slots=True)
class ServingState:
    """The state on which the supervisor's decisions depend."""

    phase: ServingPhase = "serving"
    gateway: ChildState = ChildState()
    engines: Mapping[ChildName, ChildState] = field(default_factory=lambda: {ENGINE: ChildState()})
    hurried: bool = False  # whether a second signal has ended the wait for streams
    failure: str | None = None
    # whether serving ended because of the model, for a reason that the engine has printed
    refused: bool = False
    restarting: tuple[ChildName, ...] = ()
    restart_step: RestartStep = "waits"

    @property
    def children(self) -> dict[ChildName, ChildState]:
        """The states of all children, the gateway first."""
        return {GATEWAY: self.gateway, **self.engines}

    def child(self, name: ChildName) -> ChildState:
        """Return this child's state."""
        return self.children[name]

    def having(self, name: ChildName, child: ChildState) -> ServingState:
        """Return a copy of this state in which the child `name` has the state `child`."""
        if name == GATEWAY:
            return replace(self, gateway=child)
        return replace(self, engines={**self.engines, name: child})

    def is_restarting(self, name: ChildName, step: RestartStep) -> bool:
        """Return whether this engine is being restarted, and is at this step."""
        return self.restarting[:1] == (name,) and self.restart_step == step

    @property
    def wake_at(self) -> float | None:
        """The time at which a Tick is due, or None."""
        return min((c.due for c in self.children.values() if c.due is not None), default=None)


Decision = tuple[ServingState, list[Action]]
