"""A step is launched before the previous one is collected. Stops, cancels and failures between them
harm no other request.
"""

from __future__ import annotations

from typing import Any

import pytest

from engine.core import IDLE_WAIT_S
from engine.errors import EngineUnavailable
from engine.link.messages import Cancel, Generate, SamplingParams
from engine.link.query_messages import Flush
from tests.doubles.engine.fake_runner import expected_output, prompt_where
from tests.engine.rigs.rig import EOS, Rig, generate


def ahead(**settings: Any) -> Rig:
    return Rig(overlap_scheduling=True, **settings)


def run(rig: Rig, *requests: Generate) -> None:
    for request in requests:
        rig.submit(request)
    rig.run()


class TestOrder:
    @pytest.mark.parametrize(("overlap_scheduling", "most"), [(False, 1), (True, 2)])
    def test_a_step_is_launched_before_the_last_one_is_collected(
        self, overlap_scheduling: bool, most: int
    ) -> None:
        rig = Rig(overlap_scheduling=overlap_scheduling)
        request = generate("a", range(6), max_tokens=8)
        run(rig, request)
        rig.expect_output(request)
        assert rig.runner.most_on_their_way == most
        rig.expect_nothing_left()

    def test_tokens_come_one_step_late_and_the_device_computes_none_too_many(self) -> None:
        rig = ahead()
        rig.submit(generate("a", range(6), max_tokens=3))
        seen = []
        for _ in range(4):
            rig.step()
            seen.append(len(rig.link.tokens("a")))
        assert seen == [0, 1, 2, 3]
        assert len(rig.runner.steps) == 3, "the last token is on its way, so no row is left"
        rig.expect_nothing_left()

    def test_chunks_of_a_prompt_follow_each_other_without_waiting(self) -> None:
        rig = ahead(max_batch_tokens=8)
        request = generate("a", range(40), max_tokens=4)
        rig.submit(request)
        rig.step(5)
        assert len(rig.runner.steps) == 5
        rig.run()
        rig.expect_output(request)

    def test_a_prefix_on_its_way_is_waited_for_and_found(self) -> None:
        rig = ahead(max_batch_tokens=64)
        first, second = (generate(name, range(20), max_tokens=3) for name in "ab")
        run(rig, first, second)
        rig.expect_output(first)
        rig.expect_output(second)
        assert rig.finished("b").reused.tokens == 19

    def test_a_last_token_that_was_cached_is_not_taken_for_a_pending_one(self) -> None:
        rig = ahead(max_batch_tokens=64)
        run(rig, generate("a", range(20), max_tokens=2))
        again = generate("b", range(20), max_tokens=5)
        run(rig, again)
        assert rig.runner.steps[-5].num_tokens == 1
        rig.expect_output(again)

    def test_nothing_is_on_its_way_when_it_waits_for_messages(self) -> None:
        rig = ahead()
        run(rig, generate("a", prompt_where(EOS, 2), sampling=SamplingParams(max_tokens=8)))
        assert rig.runner.on_their_way == []
        rig.step()
        assert rig.link.waits[-1] == IDLE_WAIT_S
        assert 0.0 in rig.link.waits


class TestStops:
    @pytest.mark.parametrize("position", [0, 1, 3])
    def test_a_token_sampled_after_a_stop_is_dropped(self, position: int) -> None:
        rig = ahead()
        prompt = prompt_where(EOS, position)
        run(rig, generate("a", prompt, sampling=SamplingParams(max_tokens=8)))
        assert rig.link.tokens("a") == expected_output(prompt, 8, stops=[EOS])[:-1]
        assert rig.finished("a").completion_tokens == position + 1
        assert len(rig.runner.steps) == position + 2, "one row was launched for nothing"
        assert rig.core.stats().generated_tokens == position + 1
        rig.expect_nothing_left()

    def test_blocks_and_seat_of_who_stopped_go_to_the_next_at_once(self) -> None:
        rig = ahead(num_blocks=4, block_size=4, max_running=1, max_batch_tokens=16)
        prompt = prompt_where(EOS, 2)
        after = [generate(str(n), [n, 9, 9, 9, 9], max_tokens=8) for n in range(3)]
        run(rig, generate("a", prompt, sampling=SamplingParams(max_tokens=8)), *after)
        said = [rig.link.tokens(request.request_id) for request in after]
        assert said == [expected_output([n, 9, 9, 9, 9], 8) for n in range(3)]
        rig.expect_nothing_left()


class TestEndsInFlight:
    def test_cancel(self) -> None:
        rig = ahead()
        other = generate("b", range(30, 36), max_tokens=9)
        rig.submit(generate("a", range(6), max_tokens=50))
        rig.submit(other)
        rig.step(4)
        rig.link.say(Cancel("a"))
        rig.run()
        assert rig.link.tokens("a") == expected_output(range(6), 3)
        assert rig.finished("a").completion_tokens == 3
        rig.expect_output(other)
        rig.expect_nothing_left()

    @pytest.mark.parametrize(("launched", "computed"), [(0, 0), (1, 8), (2, 16)])
    def test_a_cancel_reports_the_prompt_tokens_of_launched_steps(
        self, launched: int, computed: int
    ) -> None:
        """The device computes these tokens even if the client leaves meanwhile."""
        rig = ahead(max_batch_tokens=8)
        rig.submit(generate("a", range(40)))
        rig.step(launched)
        assert len(rig.runner.steps) == launched
        rig.link.say(Cancel("a"))
        rig.run()
        assert len(rig.runner.steps) == launched
        assert rig.finished("a").computed_tokens == computed
        rig.expect_nothing_left()

    def test_cancel_and_ask_again_at_once(self) -> None:
        rig = ahead(max_running=1)
        request = generate("a", range(6), max_tokens=6)
        rig.submit(generate("a", range(9), max_tokens=50))
        rig.step(4)
        rig.link.say(Cancel("a"))
        rig.submit(request)
        rig.run()
        assert rig.link.tokens("a")[3:] == expected_output(range(6), 6)
        rig.expect_nothing_left()

    def test_a_step_that_is_not_finite_fails_its_request_and_spares_the_others(self) -> None:
        rig = ahead(max_batch_tokens=64)
        rig.runner.not_finite = {"bad"}
        good = generate("good", range(30, 50), max_tokens=6)
        run(rig, generate("bad", range(20)), good)
        assert rig.link.events("bad") == [rig.failed("bad")]
        assert rig.failed("bad").code == "numeric_failure"
        rig.expect_output(good)
        run(rig, generate("again", range(20)))
        assert rig.finished("again").reused.tokens == 0
        rig.expect_nothing_left()

    def test_a_request_that_is_not_finite_from_some_step_on_fails(self) -> None:
        rig = ahead()
        rig.submit(generate("bad", range(20), max_tokens=30))
        rig.step(6)
        rig.runner.not_finite = {"bad"}
        rig.run()
        assert rig.failed("bad").code == "numeric_failure"
        assert (
            rig.link.tokens("bad") == expected_output(range(20), 30)[: len(rig.link.tokens("bad"))]
        )
        rig.expect_nothing_left()

    def test_a_client_that_is_gone(self) -> None:
        rig = ahead(max_running=3)
        for name in "ab":
            rig.submit(generate(name, range(6), max_tokens=40), b"gone")
        rig.submit(generate("stays", range(6), max_tokens=20))
        rig.step(3)
        rig.link.gone.add(b"gone")
        rig.run()
        assert rig.link.tokens("stays") == expected_output(range(6), 20)
        rig.expect_nothing_left()

    def test_failing_all_leaves_nothing(self) -> None:
        rig = ahead()
        for name in "ab":
            rig.submit(generate(name, range(6), max_tokens=9))
        rig.step(3)
        assert rig.runner.on_their_way
        rig.core.fail_all(EngineUnavailable("stopped"))
        assert rig.failed("a").code == rig.failed("b").code == "engine_unavailable"
        rig.expect_nothing_left()

    def test_a_draining_engine_finishes_what_is_on_its_way(self) -> None:
        rig = ahead()
        rig.submit(generate("a", range(6), max_tokens=6))
        rig.step(2)
        rig.core.drain()
        rig.run()
        assert rig.link.tokens("a") == expected_output(range(6), 6)
        rig.expect_nothing_left()

    def test_a_flush_in_between_harms_nobody(self) -> None:
        rig = ahead()
        rig.submit(generate("a", range(20), max_tokens=12))
        for number in range(6):
            rig.step()
            rig.link.say(Flush(query_id=str(number)))
        rig.run()
        assert rig.link.tokens("a") == expected_output(range(20), 12)
        rig.expect_nothing_left()


class TestRoom:
    def test_preempted_in_flight_at_any_moment(self) -> None:
        for moment in range(1, 12):
            rig = ahead(max_batch_tokens=8)
            rig.submit(generate("a", range(30), max_tokens=8))
            rig.step(moment)
            [sequence] = rig.scheduler.running
            rig.scheduler.active.preempt(sequence, rig.clock())
            rig.run()
            assert rig.scheduler.active.num_preemptions == 1
            assert rig.link.tokens("a") == expected_output(range(30), 8)
            rig.expect_nothing_left()

    def test_no_memory_for_a_step_while_another_is_on_its_way(self) -> None:
        for moment in range(1, 8):
            rig = ahead(max_batch_tokens=32)
            warm = generate("warm", range(18), max_tokens=12)
            requests = [generate(str(n), range(n, n + 20), max_tokens=4) for n in range(4)]
            rig.submit(warm)
            rig.step(moment)
            rig.runner.raising = [MemoryError()]
            run(rig, *requests)
            assert rig.runner.raising == []
            for request in (warm, *requests):
                rig.expect_output(request)
            rig.expect_nothing_left()

    def test_no_memory_twice_in_a_row_fails_the_largest_alone(self) -> None:
        rig = ahead(max_batch_tokens=32)
        small = generate("small", [1, 2, 3], max_tokens=12)
        rig.submit(small)
        rig.step(3)
        rig.runner.raising = [MemoryError(), MemoryError()]
        run(rig, generate("large", range(30)))
        assert rig.failed("large").code == "engine_failure"
        rig.expect_output(small)
        rig.expect_nothing_left()
