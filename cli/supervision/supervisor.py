"""The decisions on a child's exit, a signal or a timeout, which `watch` carries out.

Gateway and engines follow the same rules. A child that dies is started again, with a longer delay
after each short run. A child that stops answering is ended and started again. A child that was not
ready in its first few runs is given up, and the server ends unless another engine serves. At a stop
the gateway finishes its streams and ends first. Then the engines end.

    SERVING --stop, give up--> DRAINING --gateway gone--> STOPPING --engines gone--> DONE

The engines are restarted one after another. Each finishes its requests and is started again once it
has ended. The next engine follows when all are ready.

This module knows no processes, signals or clock. Every event comes with its time in seconds.
"""

from dataclasses import replace

from cli.supervision.serving_state import (
    ENGINE,
    GATEWAY,
    Action,
    Announce,
    ChildName,
    ChildState,
    Decision,
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


def decide(state: ServingState, event: Event, at: float, policy: Policy) -> Decision:
    """Return the serving state after `event`, and the actions to take. `at` is in seconds."""
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
    """Name a child in a sentence: with "the", except an engine that is one of several."""
    return name if name.startswith(f"{ENGINE}-") else f"the {name}"


def describe_status(status: int) -> str:
    """Describe an exit status in words."""
    return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"


def _exited(
    state: ServingState, name: ChildName, status: int, at: float, policy: Policy
) -> Decision:
    if state.is_restarting(name, "ends"):
        return _drained(state, name, at)
    dead = _counted(state.child(name), at, policy)
    state = state.having(name, dead)
    if name == GATEWAY:  # the next gateway will report whether the engines answer
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
    """Return why the child is not started again, or None if it is.

    A child that was ready in an earlier run is always started again, as its fault may pass. If any
    engine has been ready, all engines are started again.
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
        return state, []  # the gateway has not noticed yet that this engine has ended
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
    is_expected = state.is_restarting(name, "ends")  # the engine has drained and closes its link
    said = [] if is_expected else [Say(f"{the(name)} does not answer")]
    return state.having(name, silent), [*said]


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
    """Drain the next engine once all engines are ready, so that the others can serve."""
    name = state.restarting[0]
    away = [other for other, one in state.engines.items() if not one.ready or one.silent]
    if away:
        return state, [Say(f"restarting {the(name)} once {', '.join(map(the, away))} is ready")]
    said = Say(f"restarting {the(name)} once it has finished what it has begun")
    return replace(state, restart_step="ends"), [said, Drain(name)]


def _drained(state: ServingState, name: ChildName, at: float) -> Decision:
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
    return replace(state.having(name, again), restart_step="starts"), [StartChild(name)]


def _restarted(state: ServingState, name: ChildName) -> Decision:
    """Continue the restart of the engines if the restart waited for this child."""
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
            actions.append(StartChild(name))
    return state, actions


def _stop(state: ServingState, at: float, policy: Policy) -> Decision:
    due = at + policy.gateway.stop_s if state.gateway.alive else None
    gateway = replace(state.gateway, due=due)
    engines = {name: replace(engine, due=None) for name, engine in state.engines.items()}
    state = replace(state, phase="draining", gateway=gateway, engines=engines, restarting=())
    if not gateway.alive:
        return _go_on_stopping(state, at, policy)
    return state, [Terminate(GATEWAY)]


def _go_on_stopping(state: ServingState, at: float, policy: Policy) -> Decision:
    if state.gateway.alive:
        return state, []
    if not any(engine.alive for engine in state.engines.values()):
        return replace(state, phase="done"), []
    if state.phase == "stopping":  # the other children have been asked to end
        return state, []
    due = at + policy.engine.stop_s
    engines = {n: replace(one, due=due if one.alive else None) for n, one in state.engines.items()}
    asked: list[Action] = [Terminate(name) for name, engine in engines.items() if engine.alive]
    return replace(state, phase="stopping", engines=engines), asked
