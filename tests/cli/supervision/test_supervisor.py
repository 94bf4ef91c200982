"""The supervisor restarts a dead gateway or engine, each without the other, and stops both."""

import pytest

from cli.supervision.serving_state import (
    Action,
    Announce,
    ChildName,
    Event,
    Exited,
    Kill,
    Ready,
    ServingPhase,
    ServingState,
    Silent,
    StartChild,
    StopRequested,
    Terminate,
    Tick,
)
from cli.supervision.supervisor import decide, describe_status
from tests.cli.supervision.states import (
    CHILDREN,
    DRAINING,
    HURRIED,
    POLICY,
    READY,
    SERVING,
    STOPPING,
    also,
    live,
    orders,
)


@pytest.mark.parametrize(
    ("state", "event", "phase", "expected"),
    [
        (SERVING, Ready("engine"), "serving", [Announce()]),
        (SERVING, Ready("gateway"), "serving", []),
        (SERVING, Exited("engine", 1), "serving", []),
        (SERVING, Exited("gateway", 1), "serving", []),
        (SERVING, StopRequested(), "draining", [Terminate("gateway")]),
        (SERVING, Tick(), "serving", []),
        (SERVING, Silent("engine"), "serving", []),
        (SERVING, Silent("gateway"), "serving", []),
        (DRAINING, Silent("engine"), "draining", []),
        (DRAINING, Silent("gateway"), "draining", []),
        (READY, Ready("engine"), "serving", []),
        (READY, Ready("gateway"), "serving", []),
        (DRAINING, Ready("engine"), "draining", []),
        (DRAINING, Exited("engine", -9), "draining", []),
        (DRAINING, Exited("gateway", 0), "stopping", [Terminate("engine")]),
        (DRAINING, StopRequested(), "draining", [Terminate("gateway")]),
        (HURRIED, StopRequested(), "draining", [Kill("gateway")]),
        (DRAINING, Tick(), "draining", []),
        (STOPPING, Exited("engine", 0), "done", []),
        (STOPPING, StopRequested(), "stopping", [Kill("engine")]),
        (STOPPING, Tick(), "stopping", []),
    ],
)
def test_single_decisions(
    state: ServingState, event: Event, phase: ServingPhase, expected: list[Action]
) -> None:
    after, actions = decide(state, event, 100.0, POLICY)
    assert after.phase == phase
    assert orders(actions) == expected


@pytest.mark.parametrize("name", CHILDREN)
class TestEither:
    """Tests that hold for both the gateway and an engine."""

    def test_it_is_started_again_when_its_time_has_come(self, name: ChildName) -> None:
        waiting, actions = decide(READY, Exited(name, -11), 100.0, POLICY)
        assert waiting.wake_at == pytest.approx(100.1)
        assert f"the {name} was killed by signal 11" in str(actions)
        assert live(waiting, (100.05, Tick()))[1] == []
        restarted, done = live(waiting, (100.1, Tick()))
        assert done == [StartChild(name)]
        child = restarted.child(name)
        assert (child.alive, child.ready, child.started_at) == (True, False, 100.1)
        assert live(restarted, (200.0, Tick()))[1] == [], "it is started once"

    def test_deaths_after_being_ready_back_off_but_never_give_up(self, name: ChildName) -> None:
        state, at, delays = READY, 0.0, []
        for _ in range(12):
            state, _ = decide(state, Exited(name, 1), at, POLICY)
            assert state.phase == "serving"
            assert state.wake_at is not None
            delays.append(round(state.wake_at - at, 3))
            at = state.wake_at
            state, _ = live(state, (at, Tick()), (at, Ready(name)))
        assert delays == [0.1, 1.0, 2.0, 4.0, 8.0, *[10.0] * 7]

    def test_one_that_has_served_is_started_again_however_often(self, name: ChildName) -> None:
        """Restart a child that has served, however often it dies: the cause, such as a full disk,
        may pass.
        """
        state, at = READY, 0.0
        for status in (1, 2, 2, 1, 1, -9, 2):
            state, _ = decide(state, Exited(name, status), at, POLICY)
            assert state.phase == "serving"
            assert state.wake_at is not None
            at = state.wake_at
            state, done = live(state, (at, Tick()))
            assert done == [StartChild(name)]

    def test_a_long_run_forgives_the_deaths_before_it(self, name: ChildName) -> None:
        state = also(READY, name, short_runs=5, started_at=100.0)
        after_short, _ = decide(state, Exited(name, 1), 159.9, POLICY)
        after_long, _ = decide(state, Exited(name, 1), 160.0, POLICY)
        runs = after_short.child(name).short_runs, after_long.child(name).short_runs
        assert runs == (6, 0)
        assert after_long.wake_at == pytest.approx(160.1)

    def test_one_that_never_gets_ready_is_given_up(self, name: ChildName) -> None:
        state, done = live(
            SERVING,
            (1.0, Exited(name, 7)),
            (1.1, Tick()),
            (2.0, Exited(name, 7)),
            (3.0, Tick()),
        )
        assert done == [StartChild(name), StartChild(name)]
        assert state.phase == "serving"
        state, done = live(state, (4.0, Exited(name, 7)))
        other: ChildName = "engine" if name == "gateway" else "gateway"
        assert done == [Terminate(other)]
        assert state.failure is not None
        assert f"the {name} ended with status 7, 3 times in a row" in state.failure
        state, done = live(state, (5.0, Exited(other, 0)))
        assert (state.phase, done) == ("done", [])

    def test_one_that_says_it_cannot_start_is_not_asked_again(self, name: ChildName) -> None:
        state, done = live(SERVING, (1.0, Exited(name, 2)))
        assert done == [Terminate("engine" if name == "gateway" else "gateway")]
        assert state.failure == f"the {name} cannot start; its own words are above"

    def test_one_that_refuses_the_model_has_said_why(self, name: ChildName) -> None:
        refused, done = live(SERVING, (1.0, Exited(name, 3)))
        assert done == [Terminate("engine" if name == "gateway" else "gateway")]
        other, _ = live(SERVING, (1.0, Exited(name, 2)))
        assert (refused.refused, other.refused) == (True, False)
        assert other.failure is not None
        again, done = live(also(READY, name), (1.0, Exited(name, 3)))
        assert (again.refused, again.phase) == (False, "serving"), "it was served before"

    def test_being_ready_once_starts_the_count_anew(self, name: ChildName) -> None:
        state, _ = live(
            SERVING,
            (1.0, Exited(name, 7)),
            (1.1, Tick()),
            (2.0, Exited(name, 7)),
            (3.0, Tick()),
            (4.0, Ready(name)),
            (5.0, Exited(name, 7)),
        )
        assert state.phase == "serving"
        assert state.child(name).unready_runs == 0

    def test_readiness_of_one_that_just_died_does_not_count(self, name: ChildName) -> None:
        state, done = live(SERVING, (1.0, Exited(name, 1)), (1.0, Ready(name)))
        assert done == []
        assert state.child(name).unready_runs == 1

    def test_one_that_stays_silent_is_ended_and_started_again(self, name: ChildName) -> None:
        due = 100.0 + POLICY.patience(name).silent_s
        state, done = live(READY, (100.0, Silent(name)), (due - 0.1, Tick()))
        assert done == [], "it may come back"
        state, done = live(state, (due, Tick()), (due, Exited(name, -9)), (due + 0.1, Tick()))
        assert done == [Kill(name), StartChild(name)]
        assert state.child(name).unready_runs == 0, "it had been ready"

    def test_one_that_answers_again_is_left_alone(self, name: ChildName) -> None:
        later = 101.0 + POLICY.patience(name).silent_s
        state, done = live(
            READY, (100.0, Silent(name)), (101.0, Ready(name)), (later, Tick()), (later, Tick())
        )
        assert done == []
        assert state == READY

    def test_one_that_dies_while_it_is_silent_is_started_once(self, name: ChildName) -> None:
        later = 100.0 + POLICY.patience(name).silent_s
        _, done = live(
            READY, (100.0, Silent(name)), (101.0, Exited(name, -9)), (101.1, Tick()),
            (later, Tick()),
        )  # fmt: skip
        assert done == [StartChild(name)]


def test_the_operator_is_greeted_once() -> None:
    state, done = live(
        SERVING,
        (0.5, Ready("gateway")),
        (1.0, Ready("engine")),
        (2.0, Exited("engine", 1)),
        (2.1, Tick()),
        (3.0, Ready("engine")),
        (4.0, Exited("gateway", 1)),
        (4.1, Tick()),
        (5.0, Ready("gateway")),
    )
    assert done == [Announce(), StartChild("engine"), StartChild("gateway")]
    assert state.engines["engine"].ready
    assert state.gateway.ready


def test_the_engine_lives_on_when_the_gateway_dies() -> None:
    state, done = live(READY, (1.0, Exited("gateway", -9)), (1.1, Tick()), (2.0, Ready("gateway")))
    assert done == [StartChild("gateway")]
    assert state.engines == READY.engines


def test_a_silence_that_a_dead_gateway_reported_is_forgotten() -> None:
    silent, _ = live(READY, (1.0, Silent("engine")))
    assert live(silent, (6.0, Tick()))[1] == [Kill("engine")], "the control"
    _, done = live(silent, (2.0, Exited("gateway", -9)), (2.1, Tick()), (7.0, Tick()))
    assert done == [StartChild("gateway")]


def test_both_may_be_dead_at_once() -> None:
    state, done = live(
        READY, (1.0, Exited("gateway", 1)), (1.0, Exited("engine", 1)), (1.1, Tick())
    )
    assert done == [StartChild("gateway"), StartChild("engine")]
    assert state.wake_at is None


def test_a_stop_while_the_gateway_waits_ends_the_engine() -> None:
    state, done = live(
        READY,
        (1.0, Exited("gateway", 1)),
        (1.05, StopRequested()),
        (1.1, Tick()),
        (2.0, Exited("engine", 0)),
    )
    assert done == [Terminate("engine")]
    assert (state.phase, state.failure) == ("done", None)


def test_a_stop_while_both_wait_is_done_at_once() -> None:
    state, done = live(
        READY, (1.0, Exited("gateway", 1)), (1.0, Exited("engine", 1)), (1.05, StopRequested())
    )
    assert (state.phase, done) == ("done", [])


def test_a_stop_while_the_engine_waits_starts_nothing() -> None:
    state, done = live(
        READY,
        (1.0, Exited("engine", 1)),
        (1.05, StopRequested()),
        (1.1, Tick()),
        (2.0, Exited("gateway", 0)),
    )
    assert done == [Terminate("gateway")]
    assert state.phase == "done"
    assert state.failure is None


def test_what_does_not_stop_in_time_is_killed() -> None:
    state, done = live(READY, (100.0, StopRequested()), (134.9, Tick()))
    assert done == [Terminate("gateway")]
    state, done = live(state, (135.0, Tick()), (136.0, Exited("gateway", -9)))
    assert done == [Kill("gateway"), Terminate("engine")]
    state, done = live(state, (145.9, Tick()), (146.0, Tick()), (147.0, Exited("engine", -9)))
    assert done == [Kill("engine")]
    assert state.phase == "done"
    assert state.failure is None, "it was asked to stop"


def test_asked_twice_the_gateway_has_a_moment_to_tell_its_streams() -> None:
    state, done = live(READY, (100.0, StopRequested()), (101.0, StopRequested()))
    assert done == [Terminate("gateway"), Terminate("gateway")]
    assert state.wake_at == 101.0 + POLICY.hurry_s
    ended, done = live(state, (101.2, Exited("gateway", 0)), (102.0, Exited("engine", 0)))
    assert (ended.phase, done) == ("done", [Terminate("engine")])
    assert live(state, (105.9, Tick()), (106.0, Tick()))[1] == [Kill("gateway")]
    assert live(state, (101.1, StopRequested()))[1] == [Kill("gateway")]


def test_a_gateway_that_is_out_of_time_gets_no_more_by_being_asked_again() -> None:
    state, _ = live(READY, (100.0, StopRequested()), (134.0, StopRequested()))
    assert state.wake_at == 135.0


@pytest.mark.parametrize(
    ("status", "words"), [(0, "ended with status 0"), (-9, "was killed by signal 9")]
)
def test_statuses_in_words(status: int, words: str) -> None:
    assert describe_status(status) == words
