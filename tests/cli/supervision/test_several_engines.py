"""The supervisor keeps several engines running, and restarts them one after the other."""

from cli.supervision.serving_state import (
    Announce,
    Drain,
    Exited,
    Kill,
    Ready,
    RestartRequested,
    Say,
    Silent,
    StartChild,
    StopRequested,
    Terminate,
    Tick,
)
from cli.supervision.supervisor import decide
from tests.cli.supervision.states import POLICY, READY, THREE, THREE_STARTING, also, live, vars_of


class TestSeveralEngines:
    """Tests of engines that run and die independently."""

    def test_the_operator_is_greeted_when_the_first_is_ready(self) -> None:
        state, done = live(
            THREE_STARTING,
            (1.0, Ready("engine-1")),
            (2.0, Ready("engine-0")),
            (3.0, Ready("engine-1")),
        )
        assert done == [Announce()]
        assert [one.ready for one in state.engines.values()] == [True, True, False]

    def test_one_that_dies_is_started_again_alone(self) -> None:
        state, done = live(THREE, (1.0, Exited("engine-1", -9)), (1.1, Tick()))
        assert done == [StartChild("engine-1")]
        assert also(state, "engine-1", **vars_of(THREE.engines["engine-1"])) == THREE

    def test_beside_others_that_serve_one_is_tried_for_ever(self) -> None:
        state, _ = live(THREE_STARTING, (0.5, Ready("engine-0")))
        for at in range(1, 60, 10):
            state, _ = live(state, (at, Exited("engine-1", 2)), (at + 10, Tick()))
            assert state.phase == "serving"
        alone, _ = live(THREE_STARTING, (1.0, Exited("engine-1", 2)))
        assert alone.phase == "draining", "the control: where none serves, all have this config"

    def test_one_that_hangs_is_ended_alone(self) -> None:
        _, done = live(THREE, (1.0, Silent("engine-2")), (6.0, Tick()))
        assert done == [Kill("engine-2")]

    def test_all_are_stopped_after_the_gateway_and_waited_for(self) -> None:
        state, done = live(THREE, (1.0, StopRequested()), (2.0, Exited("gateway", 0)))
        assert done == [Terminate("gateway"), *map(Terminate, THREE.engines)]
        state, done = live(state, (3.0, Exited("engine-1", 0)), (4.0, Exited("engine-0", 0)))
        assert (state.phase, done) == ("stopping", [])
        assert live(state, (12.0, Tick()))[1] == [Kill("engine-2")]
        assert live(state, (5.0, StopRequested()))[1] == [Kill("engine-2")]
        assert live(state, (5.0, Exited("engine-2", 0)))[0].phase == "done"


class TestRestart:
    """Tests of restarts of all engines, one after the other."""

    def test_each_ends_by_itself_and_the_next_waits_until_it_is_back(self) -> None:
        state, done = live(THREE, (1.0, RestartRequested()))
        for name in THREE.engines:
            assert done == [Drain(name)]
            state, done = live(state, (100.0, Tick()), (200.0, Exited(name, 0)))
            assert done == [StartChild(name)], (
                "it had all the time it needed, and is started at once"
            )
            assert state.engines[name].short_runs == 0
            state, done = live(state, (201.0, Ready(name)))
        assert done == []
        assert state.restarting == ()
        assert all(one.ready for one in state.engines.values())

    def test_the_silence_of_the_one_that_ends_is_no_news_but_is_bounded(self) -> None:
        said = [Say("engine-1 does not answer")]
        begun, _ = live(THREE, (1.0, RestartRequested()))
        assert decide(begun, Silent("engine-1"), 2.0, POLICY)[1] == said, "the control"
        silent, nothing = decide(begun, Silent("engine-0"), 2.0, POLICY)
        assert nothing == []
        assert live(silent, (60.0, Tick()))[1] == [Kill("engine-0")]

    def test_an_answer_of_the_engine_before_is_not_taken_for_one_of_the_new(self) -> None:
        begun, _ = live(
            THREE,
            (0.1, Ready("engine-0", "old")),
            (1.0, RestartRequested()),
            (2.0, Exited("engine-0", 0)),
        )
        state, done = live(begun, (2.1, Ready("engine-0", "old")))
        assert (state, done) == (begun, [])
        assert live(state, (2.1, Ready("engine-0", "new")))[1] == [Drain("engine-1")]

    def test_while_one_is_away_no_other_is_ended(self) -> None:
        state, done = live(
            THREE,
            (1.0, Exited("engine-2", -9)),
            (1.0, RestartRequested()),
            (1.0, RestartRequested()),
            (1.1, Tick()),
        )
        assert done == [StartChild("engine-2")]
        assert live(state, (2.0, Ready("engine-2")))[1] == [Drain("engine-0")]

    def test_one_that_dies_again_before_it_is_ready_holds_up_the_rest(self) -> None:
        state, done = live(
            THREE,
            (1.0, RestartRequested()),
            (2.0, Exited("engine-0", 0)),
            (3.0, Exited("engine-0", 1)),
            (4.0, Tick()),
            (5.0, Ready("engine-1")),
        )
        assert done == [Drain("engine-0"), StartChild("engine-0"), StartChild("engine-0")]
        assert live(state, (6.0, Ready("engine-0")))[1] == [Drain("engine-1")]

    def test_another_that_dies_meanwhile_is_waited_for(self) -> None:
        state, done = live(
            THREE,
            (1.0, RestartRequested()),
            (2.0, Exited("engine-1", -9)),
            (2.1, Tick()),
            (3.0, Exited("engine-0", 0)),
            (4.0, Ready("engine-0")),
        )
        assert done == [Drain("engine-0"), StartChild("engine-1"), StartChild("engine-0")]
        assert live(state, (5.0, Ready("engine-1")))[1] == [Drain("engine-1")]

    def test_a_stop_ends_it(self) -> None:
        state, done = live(
            THREE, (1.0, RestartRequested()), (2.0, StopRequested()), (3.0, Exited("engine-0", 0))
        )
        assert done == [Drain("engine-0"), Terminate("gateway")]
        assert state.restarting == ()
        assert live(state, (4.0, RestartRequested()))[1] == []

    def test_one_engine_alone_is_restarted_too(self) -> None:
        _, done = live(READY, (1.0, RestartRequested()), (2.0, Exited("engine", 0)))
        assert done == [Drain("engine"), StartChild("engine")]
