"""States of a supervised server, and a function that applies timed events to a state."""

from dataclasses import fields, replace
from typing import Any

from cli.supervision.serving_state import (
    Action,
    ChildName,
    ChildPatience,
    ChildState,
    Event,
    Policy,
    Say,
    ServingState,
)
from cli.supervision.supervisor import decide

CHILDREN = ("gateway", "engine")
WORLD = ("gateway", "engine-0", "engine-1")
POLICY = Policy(
    max_unready_runs=3,
    gateway=ChildPatience(stop_s=35.0, silent_s=30.0),
    engine=ChildPatience(stop_s=10.0, silent_s=5.0),
)
IS_READY = ChildState(ready=True, has_been_ready=True)
SERVING = ServingState()
READY = ServingState(gateway=IS_READY, engines={"engine": IS_READY})
THREE = ServingState(
    gateway=IS_READY, engines={f"engine-{number}": IS_READY for number in range(3)}
)
THREE_STARTING = replace(THREE, engines=dict.fromkeys(THREE.engines, ChildState()))
DRAINING = replace(READY, phase="draining", gateway=replace(IS_READY, due=135.0))
HURRIED = replace(DRAINING, hurried=True)
STOPPING = ServingState(
    phase="stopping",
    gateway=replace(IS_READY, alive=False, ready=False),
    engines={"engine": replace(IS_READY, due=110.0)},
)


def also(state: ServingState, name: ChildName, **changed: Any) -> ServingState:
    """Return the state with some fields of one child changed."""
    return state.having(name, replace(state.child(name), **changed))


def vars_of(child: ChildState) -> dict[str, Any]:
    """Return the child's fields by name."""
    return {one.name: getattr(child, one.name) for one in fields(child)}


def orders(actions: list[Action]) -> list[Action]:
    """Return the actions except messages."""
    return [action for action in actions if not isinstance(action, Say)]


def live(state: ServingState, *events: tuple[float, Event]) -> tuple[ServingState, list[Action]]:
    """Apply timed events; return the last state, and all actions except messages."""
    done: list[Action] = []
    for at, event in events:
        state, actions = decide(state, event, at, POLICY)
        done += orders(actions)
    return state, done
