"""The supervisor's decisions: a table of single ones, and whole lives drawn by hypothesis."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    describe_status,
)

POLICY = Policy(
    max_unready_runs=3,
    drain_s=35.0,
    stop_s=10.0,
    silent_s=5.0,
)
SERVING = State()
READY = State(engine_ready=True, announced=True)
DRAINING = replace(READY, phase=Phase.DRAINING, wake_at=135.0)
HURRIED = replace(DRAINING, hurried=True)
STOPPING = replace(READY, phase=Phase.STOPPING, wake_at=110.0)


def orders(actions: list[Action]) -> list[Action]:
    """The actions without what is only said."""
    return [action for action in actions if not isinstance(action, Say)]


def live(state: State, *events: tuple[float, Event]) -> tuple[State, list[Action]]:
    """Go through timed events; the last state and all orders."""
    done: list[Action] = []
    for at, event in events:
        state, actions = decide(state, event, at, POLICY)
        done += orders(actions)
    return state, done


@pytest.mark.parametrize(
    ("state", "event", "phase", "expected"),
    [
        (SERVING, EngineReady(), Phase.SERVING, [Announce()]),
        (SERVING, Exited("engine", 1), Phase.SERVING, []),
        (SERVING, Exited("gateway", 1), Phase.STOPPING, [Terminate("engine")]),
        (SERVING, StopRequested(), Phase.DRAINING, [Terminate("gateway")]),
        (SERVING, Tick(), Phase.SERVING, []),
        (SERVING, EngineSilent(), Phase.SERVING, []),
        (DRAINING, EngineSilent(), Phase.DRAINING, []),
        (READY, EngineReady(), Phase.SERVING, []),
        (DRAINING, EngineReady(), Phase.DRAINING, []),
        (DRAINING, Exited("engine", -9), Phase.DRAINING, []),
        (DRAINING, Exited("gateway", 0), Phase.STOPPING, [Terminate("engine")]),
        (DRAINING, StopRequested(), Phase.DRAINING, [Terminate("gateway")]),
        (HURRIED, StopRequested(), Phase.DRAINING, [Kill("gateway")]),
        (DRAINING, Tick(), Phase.DRAINING, []),
        (STOPPING, Exited("engine", 0), Phase.DONE, []),
        (STOPPING, StopRequested(), Phase.STOPPING, [Kill("engine")]),
        (STOPPING, Tick(), Phase.STOPPING, []),
    ],
)
def test_single_decisions(state: State, event: Event, phase: Phase, expected: list[Action]) -> None:
    after, actions = decide(state, event, 100.0, POLICY)
    assert after.phase is phase
    assert orders(actions) == expected


def test_the_engine_is_started_again_when_its_time_has_come() -> None:
    waiting, actions = decide(READY, Exited("engine", -11), 100.0, POLICY)
    assert waiting.wake_at == pytest.approx(100.1)
    assert "killed by signal 11" in str(actions)
    assert live(waiting, (100.05, Tick()))[1] == []
    restarted, done = live(waiting, (100.1, Tick()))
    assert done == [StartEngine()]
    assert (restarted.engine_alive, restarted.engine_started_at) == (True, 100.1)
    assert not restarted.engine_ready
    assert live(restarted, (200.0, Tick()))[1] == [], "it is started once"


def test_deaths_after_being_ready_back_off_but_never_give_up() -> None:
    state, at, delays = READY, 0.0, []
    for _ in range(12):
        state, _ = decide(state, Exited("engine", 1), at, POLICY)
        assert state.phase is Phase.SERVING
        assert state.wake_at is not None
        delays.append(round(state.wake_at - at, 3))
        at = state.wake_at
        state, _ = live(state, (at, Tick()), (at, EngineReady()))
    assert delays == [0.1, 1.0, 2.0, 4.0, 8.0, *[10.0] * 7]


def test_a_long_run_forgives_the_deaths_before_it() -> None:
    state = replace(READY, short_runs=5, engine_started_at=100.0)
    after_short, _ = decide(state, Exited("engine", 1), 159.9, POLICY)
    after_long, _ = decide(state, Exited("engine", 1), 160.0, POLICY)
    assert (after_short.short_runs, after_long.short_runs) == (6, 0)
    assert after_long.wake_at == pytest.approx(160.1)


def test_an_engine_that_never_gets_ready_is_given_up() -> None:
    state, done = live(
        SERVING,
        (1.0, Exited("engine", 3)),
        (1.1, Tick()),
        (2.0, Exited("engine", 3)),
        (3.0, Tick()),
    )
    assert done == [StartEngine(), StartEngine()]
    assert state.phase is Phase.SERVING
    state, done = live(state, (4.0, Exited("engine", 3)))
    assert done == [Terminate("gateway")]
    assert state.failure is not None
    assert "ended with status 3, 3 times in a row" in state.failure
    state, done = live(state, (5.0, Exited("gateway", 0)))
    assert (state.phase, done) == (Phase.DONE, [])


def test_an_engine_that_says_it_cannot_start_is_not_asked_again() -> None:
    state, done = live(SERVING, (1.0, Exited("engine", 2)))
    assert done == [Terminate("gateway")]
    assert state.failure == "the engine cannot start; its own words are above"


def test_one_that_has_served_before_is_asked_again() -> None:
    state, done = live(READY, (1.0, Exited("engine", 2)), (1.1, Tick()), (2.0, Exited("engine", 2)))
    assert done == [StartEngine()]
    assert state.phase is Phase.SERVING


def test_being_ready_once_starts_the_count_anew() -> None:
    state, _ = live(
        SERVING,
        (1.0, Exited("engine", 3)),
        (1.1, Tick()),
        (2.0, Exited("engine", 3)),
        (3.0, Tick()),
        (4.0, EngineReady()),
        (5.0, Exited("engine", 3)),
    )
    assert state.phase is Phase.SERVING
    assert state.unready_runs == 0


def test_the_operator_is_greeted_once() -> None:
    state, done = live(
        SERVING,
        (1.0, EngineReady()),
        (2.0, Exited("engine", 1)),
        (2.1, Tick()),
        (3.0, EngineReady()),
    )
    assert done == [Announce(), StartEngine()]
    assert state.engine_ready


def test_readiness_of_an_engine_that_just_died_does_not_count() -> None:
    state, done = live(SERVING, (1.0, Exited("engine", 1)), (1.0, EngineReady()))
    assert done == []
    assert state.unready_runs == 1


def test_an_engine_that_stays_silent_is_ended_and_started_again() -> None:
    state, done = live(READY, (100.0, EngineSilent()), (104.9, Tick()))
    assert done == [], "it may come back"
    state, done = live(state, (105.0, Tick()), (105.1, Exited("engine", -9)), (105.2, Tick()))
    assert done == [Kill("engine"), StartEngine()]
    assert state.unready_runs == 0, "it had been ready"


def test_an_engine_that_answers_again_is_left_alone() -> None:
    state, done = live(
        READY, (100.0, EngineSilent()), (104.0, EngineReady()), (105.0, Tick()), (110.0, Tick())
    )
    assert done == []
    assert state == READY


def test_an_engine_that_dies_while_it_is_silent_is_started_once() -> None:
    _, done = live(
        READY, (100.0, EngineSilent()), (101.0, Exited("engine", -9)), (101.1, Tick()),
        (105.0, Tick()),
    )  # fmt: skip
    assert done == [StartEngine()]


def test_a_stop_while_the_engine_waits_starts_nothing() -> None:
    state, done = live(
        READY,
        (1.0, Exited("engine", 1)),
        (1.05, StopRequested()),
        (1.1, Tick()),
        (2.0, Exited("gateway", 0)),
    )
    assert done == [Terminate("gateway")]
    assert state.phase is Phase.DONE
    assert state.failure is None


def test_what_does_not_stop_in_time_is_killed() -> None:
    state, done = live(READY, (100.0, StopRequested()), (134.9, Tick()))
    assert done == [Terminate("gateway")]
    state, done = live(state, (135.0, Tick()), (136.0, Exited("gateway", -9)))
    assert done == [Kill("gateway"), Terminate("engine")]
    state, done = live(state, (145.9, Tick()), (146.0, Tick()), (147.0, Exited("engine", -9)))
    assert done == [Kill("engine")]
    assert state.phase is Phase.DONE
    assert state.failure is None, "it was asked to stop"


def test_asked_twice_the_gateway_has_a_moment_to_tell_its_streams() -> None:
    state, done = live(READY, (100.0, StopRequested()), (101.0, StopRequested()))
    assert done == [Terminate("gateway"), Terminate("gateway")]
    assert state.wake_at == 101.0 + POLICY.hurry_s
    ended, done = live(state, (101.2, Exited("gateway", 0)), (102.0, Exited("engine", 0)))
    assert (ended.phase, done) == (Phase.DONE, [Terminate("engine")])
    assert live(state, (105.9, Tick()), (106.0, Tick()))[1] == [Kill("gateway")]
    assert live(state, (101.1, StopRequested()))[1] == [Kill("gateway")]


def test_a_gateway_that_is_out_of_time_gets_no_more_by_being_asked_again() -> None:
    state, _ = live(READY, (100.0, StopRequested()), (134.0, StopRequested()))
    assert state.wake_at == 135.0


def test_the_death_of_the_gateway_ends_serving_and_says_so() -> None:
    state, done = live(READY, (1.0, Exited("gateway", 98)), (2.0, Exited("engine", 0)))
    assert done == [Terminate("engine")]
    assert state.phase is Phase.DONE
    assert state.failure == "the gateway ended with status 98"


@pytest.mark.parametrize(
    ("status", "words"), [(0, "ended with status 0"), (-9, "was killed by signal 9")]
)
def test_statuses_in_words(status: int, words: str) -> None:
    assert describe_status(status) == words


@dataclass
class World:
    """Two processes that do what they are ordered to, sooner or later, and a clock."""

    state: State = field(default_factory=State)
    now: float = 0.0
    alive: dict[ChildName, bool] = field(default_factory=lambda: {"gateway": True, "engine": True})
    doomed: set[ChildName] = field(default_factory=set)
    stops: int = 0
    greetings: int = 0

    def tell(self, event: Event) -> None:
        self.state, actions = decide(self.state, event, self.now, POLICY)
        for action in actions:
            self.obey(action)

    def obey(self, action: Action) -> None:
        match action:
            case StartEngine():
                assert not self.alive["engine"], "two engines at once"
                assert self.stops == 0, "started after a stop"
                assert self.alive["gateway"], "started for nobody"
                self.alive["engine"] = True
            case Terminate(name) | Kill(name):
                assert self.alive[name], f"{name} is gone already"
                silent = self.state.phase is Phase.SERVING
                assert name == "gateway" or silent or not self.alive["gateway"], "gateway first"
                self.doomed.add(name)
            case Announce():
                self.greetings += 1
            case Say():
                pass

    def die(self, name: ChildName, status: int) -> None:
        if self.alive[name]:
            self.alive[name] = False
            self.doomed.discard(name)
            self.tell(Exited(name, status))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        if self.state.wake_at is not None and self.now >= self.state.wake_at:
            self.tell(Tick())

    def stop(self) -> None:
        self.stops += 1
        self.tell(StopRequested())

    def check(self) -> None:
        assert self.greetings <= 1
        assert self.state.engine_alive == self.alive["engine"]
        assert (self.state.phase is Phase.DONE) <= (not any(self.alive.values()))
        if self.state.phase is Phase.SERVING and not self.alive["engine"]:
            assert self.state.wake_at is not None, "nobody will start the engine"
            assert self.state.wake_at <= self.now + POLICY.backoff.max_delay_s
        if self.state.phase in (Phase.DRAINING, Phase.STOPPING):
            assert self.doomed or self.state.wake_at is not None, "nobody will end this"


def steps() -> st.SearchStrategy[list[tuple[str, float]]]:
    happening = st.sampled_from(
        ["engine dies", "gateway dies", "ready", "silent", "stop", "wait", "wait"]
    )
    return st.lists(st.tuples(happening, st.floats(0.0, 120.0)), max_size=40)


@settings(max_examples=300, deadline=None)
@given(steps())
def test_any_life_ends_with_nothing_left_running(life: list[tuple[str, float]]) -> None:
    world = World()
    for happening, seconds in life:
        if world.state.phase is Phase.DONE:
            break
        match happening:
            case "engine dies":
                world.die("engine", -9)
            case "gateway dies":
                world.die("gateway", 1)
            case "silent":
                world.tell(EngineSilent())
            case "ready":
                world.tell(EngineReady())
            case "stop":
                world.stop()
            case _:
                world.wait(seconds)
        world.check()
    if world.state.phase is not Phase.DONE:
        world.stop()
    for name in ("gateway", "engine", "gateway"):
        if world.alive[name] and name in world.doomed:
            world.die(name, 0)
        world.check()
    assert world.state.phase is Phase.DONE
    assert not any(world.alive.values())
