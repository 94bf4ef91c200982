"""The effects of a step on its sequences: tokens, stops, cancels, failures and times."""

from __future__ import annotations

import pytest

from engine.errors import EngineUnavailable
from engine.link.event_messages import Tokens, WrittenAndRead
from engine.link.messages import Cancel, Generate, SamplingParams
from engine.link.query_messages import Flush
from engine.step import Step
from tests.doubles.engine.fake_runner import expected_output, prompt_where
from tests.engine.rigs.rig import CLIENT, EOS, Rig, generate


def run(request: Generate) -> Rig:
    rig = Rig()
    rig.submit(request)
    rig.run()
    rig.expect_nothing_left()
    return rig


class TestStops:
    def test_max_tokens_is_length(self) -> None:
        rig = run(generate("a", [1, 2, 3], max_tokens=5))
        finished = rig.finished("a")
        assert finished.reason == "length"
        assert finished.stop_token_id is None
        assert (finished.prompt_tokens, finished.completion_tokens) == (3, 5)
        assert rig.link.tokens("a") == expected_output([1, 2, 3], 5)

    def test_a_prompt_alone_is_computed_and_no_token_is_told_or_counted(self) -> None:
        for prompt in ([1] * 9, prompt_where(EOS, 0)):
            rig = Rig()
            rig.submit(generate("a", prompt, sampling=SamplingParams(max_tokens=0)))
            rig.run()
            finished = rig.finished("a")
            assert rig.link.events("a") == [finished]
            assert (finished.reason, finished.stop_token_id) == ("length", None)
            assert (finished.prompt_tokens, finished.completion_tokens) == (len(prompt), 0)
            assert rig.core.stats().generated_tokens == 0
            rig.submit(generate("b", prompt, max_tokens=2))
            rig.run()
            assert rig.finished("b").reused.tokens == (len(prompt) - 1) // 4 * 4
            rig.expect_nothing_left()

    def test_eos_stops_and_is_counted_but_not_sent(self) -> None:
        prompt = prompt_where(EOS, 3)
        rig = run(generate("a", prompt, sampling=SamplingParams(max_tokens=8)))
        finished = rig.finished("a")
        assert (finished.reason, finished.stop_token_id) == ("stop", EOS)
        assert finished.completion_tokens == 4
        assert finished.stop_logprobs is None, "nobody asked"
        assert rig.link.tokens("a") == expected_output(prompt, 8, stops=[EOS])[:-1]

    def test_eos_may_be_ignored(self) -> None:
        prompt = prompt_where(EOS, 3)
        rig = run(generate("a", prompt, sampling=SamplingParams(max_tokens=8, ignore_eos=True)))
        assert rig.finished("a").reason == "length"
        assert rig.link.tokens("a") == expected_output(prompt, 8)

    def test_a_stop_token_stops_though_eos_is_ignored(self) -> None:
        prompt = prompt_where(7, 2)
        sampling = SamplingParams(max_tokens=8, stop_token_ids=frozenset((7, 61)), ignore_eos=True)
        rig = run(generate("a", prompt, sampling=sampling))
        assert rig.finished("a").stop_token_id == 7
        assert rig.finished("a").completion_tokens == 3
        assert len(rig.link.tokens("a")) == 2

    def test_a_first_token_that_stops_leaves_only_the_end(self) -> None:
        rig = run(generate("a", prompt_where(EOS, 0), sampling=SamplingParams(max_tokens=8)))
        assert rig.link.events("a") == [rig.finished("a")]

    def test_a_stop_token_at_the_last_place_is_a_stop(self) -> None:
        prompt = prompt_where(EOS, 3)
        rig = run(generate("a", prompt, sampling=SamplingParams(max_tokens=4)))
        assert rig.finished("a").reason == "stop"


class TestTokens:
    def test_the_first_tokens_say_what_was_cached_and_how_long_it_waited(self) -> None:
        rig = Rig(max_running=1)
        rig.submit(generate("before", range(12), max_tokens=3))
        rig.submit(generate("a", range(12), max_tokens=3))
        rig.run()
        first, *rest = [event for event in rig.link.events("a") if isinstance(event, Tokens)]
        assert first.reused is not None
        assert first.reused.tokens == 11
        assert first.timing is not None
        assert 0.002 < first.timing.queue < 0.1
        assert [(event.reused, event.timing) for event in rest] == [(None, None)] * 2

    def test_logprobs_come_with_their_token(self) -> None:
        sampling = SamplingParams(max_tokens=2, num_logprobs=1, ignore_eos=True)
        rig = run(generate("a", [1, 2, 3], sampling=sampling))
        for event in rig.link.events("a")[:-1]:
            assert isinstance(event, Tokens)
            assert event.logprobs is not None
            assert event.logprobs[0].top[0][0] == event.token_ids[0]
        rig = run(generate("a", [1, 2, 3], max_tokens=1))
        first = rig.link.events("a")[0]
        assert isinstance(first, Tokens)
        assert first.logprobs is None


class TestCancel:
    def test_while_waiting(self) -> None:
        rig = Rig(max_running=1)
        rig.submit(generate("running", range(6), max_tokens=6))
        rig.submit(generate("a", range(6)))
        rig.step()
        rig.link.say(Cancel("a"))
        rig.run()
        assert rig.link.events("a") == [rig.finished("a")]
        assert rig.finished("a").reason == "cancelled"
        assert rig.finished("a").completion_tokens == 0
        assert rig.finished("a").computed_tokens == 0

    def test_while_running(self) -> None:
        rig = Rig()
        rig.submit(generate("a", range(6), max_tokens=50))
        rig.step(4)
        rig.link.say(Cancel("a"))
        rig.run()
        finished = rig.finished("a")
        assert (finished.reason, finished.completion_tokens) == ("cancelled", 4)
        rig.expect_nothing_left()

    def test_in_the_middle_of_its_prompt(self) -> None:
        rig = Rig(max_batch_tokens=8)
        rig.submit(generate("a", range(40)))
        rig.step(2)
        rig.link.say(Cancel("a"))
        rig.run()
        assert rig.link.events("a") == [rig.finished("a")]
        assert rig.finished("a").computed_tokens == 16
        rig.submit(generate("b", range(40)))
        rig.run()
        finished = rig.finished("b")
        assert finished.reused.tokens == 16  # the tokens computed by the first request stay cached
        assert finished.computed_tokens == 24
        rig.expect_nothing_left()

    def test_while_preempted(self) -> None:
        rig = Rig()
        rig.submit(generate("a", range(6), max_tokens=50))
        rig.step(4)
        [sequence] = rig.scheduler.running
        rig.scheduler.active.preempt(sequence, rig.clock())
        rig.link.say(Cancel("a"))
        rig.run()
        finished = rig.finished("a")
        assert (finished.reason, finished.completion_tokens) == ("cancelled", 4)
        assert finished.computed_tokens == 6
        rig.expect_nothing_left()

    def test_what_is_computed_anew_after_a_preemption_counts_once(self) -> None:
        rig = Rig()
        rig.submit(generate("a", range(6), max_tokens=8))
        rig.step(4)
        [sequence] = rig.scheduler.running
        rig.scheduler.active.preempt(sequence, rig.clock())
        rig.run()
        finished = rig.finished("a")
        assert (finished.completion_tokens, finished.computed_tokens) == (8, 6)

    def test_twice_unknown_or_too_late_is_nothing(self) -> None:
        rig = Rig()
        rig.submit(generate("a", range(6), max_tokens=50))
        rig.step()
        for request_id in ("a", "a", "never heard of"):
            rig.link.say(Cancel(request_id))
        rig.run()
        rig.link.say(Cancel("a"))
        rig.step()
        assert rig.finished("a").reason == "cancelled"
        assert rig.link.events("never heard of") == []

    def test_a_cancel_of_one_gateway_does_not_touch_anothers_request(self) -> None:
        rig = Rig()
        request = generate("same id", range(6), max_tokens=5)
        rig.submit(request, b"one")
        rig.submit(request, b"two")
        rig.step()
        rig.link.say(Cancel("same id"), b"one")
        rig.run()
        assert len(rig.link.tokens("same id", b"one")) < 5
        assert rig.link.tokens("same id", b"two") == expected_output(range(6), 5)


class TestNotFinite:
    def test_nothing_of_it_stays(self) -> None:
        rig = Rig(max_batch_tokens=64)
        rig.runner.not_finite = {"bad"}
        rig.submit(generate("bad", range(20)))
        rig.submit(generate("good", range(30, 50)))
        rig.run()
        assert rig.failed("bad").code == "numeric_failure"
        assert rig.link.events("bad") == [rig.failed("bad")]
        rig.expect_output(generate("good", range(30, 50)))
        for prompt, cached in ((range(20), 0), (range(30, 50), 19)):
            name = f"again {prompt[0]}"
            rig.submit(generate(name, prompt))
            rig.run()
            assert rig.finished(name).reused.tokens == cached
        rig.expect_nothing_left()

    def test_chunks_that_came_before_are_forgotten_too(self) -> None:
        rig = Rig(max_batch_tokens=8)
        rig.runner.not_finite = {"bad"}
        rig.submit(generate("bad", range(40)))
        rig.run()
        rig.submit(generate("again", range(40)))
        rig.run()
        assert rig.finished("again").reused.tokens == 0


class TestWrittenAndRead:
    @pytest.mark.parametrize("overlap_scheduling", [False, True])
    def test_the_end_tells_what_was_written_and_what_was_found_first(
        self, overlap_scheduling: bool
    ) -> None:
        rig = Rig(overlap_scheduling=overlap_scheduling)
        rig.submit(generate("a", range(10), max_tokens=6, writer="ann"))
        rig.run()
        assert rig.finished("a").cache == WrittenAndRead(12)  # the last token has no KV yet
        answer = rig.link.tokens("a")
        rig.submit(generate("b", [*range(10), *answer], max_tokens=6, writer="ben"))
        rig.run()
        assert rig.finished("b").cache == WrittenAndRead(8, {"ann": 12})
        rig.submit(generate("c", [*range(10), *answer, 5], max_tokens=1, writer="ben"))
        rig.run()
        # read the first block that b wrote
        assert rig.finished("c").cache == WrittenAndRead(0, {"ben": 4})
        rig.expect_nothing_left()

    def test_of_a_crowd_one_writes_and_one_is_the_first_to_find(self) -> None:
        rig = Rig(max_batch_tokens=64)
        for number in range(5):
            rig.submit(generate(f"{number}", range(17), max_tokens=1, writer=f"w{number}"))
        rig.run()
        ends = [rig.finished(f"{number}").cache for number in range(5)]
        assert sorted(end.written for end in ends) == [0, 0, 0, 0, 16]
        [writer] = [f"w{number}" for number, end in enumerate(ends) if end.written]
        assert [end.first_reads for end in ends if end.first_reads] == [{writer: 16}]

    def test_without_a_label_or_without_the_cache_nothing_is_told(self) -> None:
        rig = Rig()
        rig.submit(generate("a", range(10), max_tokens=2))
        rig.submit(generate("b", range(20, 30), writer="ben", use_cache=False))
        rig.run()
        rig.submit(generate("c", range(12), max_tokens=1, writer="cid"))
        rig.run()
        for name in "ab":
            assert rig.finished(name).cache == WrittenAndRead()
        assert rig.finished("c").reused.tokens == 8
        assert rig.finished("c").cache == WrittenAndRead(4)

    def test_a_cancelled_request_tells_it_too(self) -> None:
        rig = Rig(max_batch_tokens=8)
        rig.submit(generate("a", range(40), writer="ann"))
        rig.step(2)
        rig.link.say(Cancel("a"))
        rig.run()
        assert rig.finished("a").cache == WrittenAndRead(16)
        rig.submit(generate("b", range(40), max_tokens=50, writer="ben"))
        rig.step(2)
        rig.link.say(Cancel("b"))
        rig.run()
        assert rig.finished("b").cache.first_reads == {"ann": 16}

    def test_one_that_never_began_tells_nothing(self) -> None:
        rig = Rig(max_running=1)
        rig.submit(generate("running", range(6), max_tokens=6))
        rig.submit(generate("a", range(6), writer="ann"))
        rig.step()
        rig.link.say(Cancel("a"))
        rig.run()
        assert rig.finished("a").cache == WrittenAndRead()

    def test_both_leases_of_a_preempted_sequence_count(self) -> None:
        rig = Rig()
        rig.submit(generate("a", range(10), max_tokens=10, writer="ann"))
        rig.step(3)
        [sequence] = rig.scheduler.running
        rig.scheduler.active.preempt(sequence, rig.clock())
        rig.run()
        assert rig.scheduler.active.num_preemptions == 1
        # The request resumes from its own written blocks, and reads them.
        assert rig.finished("a").cache == WrittenAndRead(16, {"ann": 12})

    def test_a_request_that_fails_tells_what_it_found(self) -> None:
        rig = Rig(max_batch_tokens=8)
        rig.submit(generate("a", range(20), max_tokens=1, writer="ann"))
        rig.run()
        rig.runner.not_finite = {"bad"}
        rig.submit(generate("bad", range(40), writer="ben"))
        rig.run()
        failed = rig.failed("bad").cache
        assert failed.first_reads == {"ann": 20}
        assert failed.written > 0  # the blocks were written before they were flushed

    def test_a_flow_that_was_forgotten_writes_nothing_more(self) -> None:
        rig = Rig(max_batch_tokens=8)
        rig.submit(generate("a", range(40), max_tokens=1, flow="x", writer="ann"))
        rig.step(2)
        rig.link.say(Flush(query_id="q", flow="x"))
        rig.run()
        assert rig.finished("a").cache == WrittenAndRead(16)


def slow_rig() -> Rig:
    """Make a rig in which every computed token takes a second."""
    rig = Rig(max_batch_tokens=128)

    def take(step: Step) -> None:
        rig.clock.now += step.num_tokens

    rig.runner.takes = take
    return rig


class TestSeconds:
    def test_a_sequence_alone_has_its_steps_to_itself(self) -> None:
        rig = slow_rig()
        rig.submit(generate("a", [1, 2, 3], max_tokens=5))
        rig.run()
        assert rig.finished("a").engine_seconds == pytest.approx(3 + 4)

    def test_steps_are_shared_by_tokens_and_nothing_is_lost(self) -> None:
        rig = slow_rig()
        rig.submit(generate("long", list(range(40)), max_tokens=3))
        rig.submit(generate("short", [50, 51], max_tokens=8))
        rig.run()
        assert rig.finished("long").engine_seconds == pytest.approx(40 + 2)
        assert rig.finished("short").engine_seconds == pytest.approx(2 + 7)

    def test_a_cancelled_request_reports_its_share_of_the_steps(self) -> None:
        rig = slow_rig()
        rig.submit(generate("a", list(range(10)), max_tokens=20))
        rig.step(3)
        rig.link.say(Cancel("a"), CLIENT)
        rig.run()
        assert rig.finished("a").reason == "cancelled"
        assert rig.finished("a").engine_seconds == pytest.approx(10 + 2)

    def test_saved_seconds_are_those_of_the_cached_tokens(self) -> None:
        rig = slow_rig()
        prompt = list(range(64))
        rig.submit(generate("cold", prompt, max_tokens=1))
        rig.run()
        assert rig.finished("cold").reused.saved_seconds == 0.0
        rig.submit(generate("warm", [*prompt, 60, 59], max_tokens=1))
        rig.run()
        assert rig.finished("warm").reused.tokens == 64
        assert rig.finished("warm").reused.saved_seconds == pytest.approx(
            64, rel=0.05
        )  # one second for each token
        first = rig.link.events("warm")[0]
        assert isinstance(first, Tokens)
        assert first.reused is not None
        assert first.reused.saved_seconds == pytest.approx(64, rel=0.05)

    def test_nothing_measured_is_not_nothing_saved(self) -> None:
        rig = slow_rig()
        for name in ("cold", "warm"):
            rig.submit(generate(name, list(range(20)), max_tokens=1))
            rig.run()
        assert rig.finished("warm").reused.tokens > 0
        assert rig.finished("warm").reused.saved_seconds is None


def test_what_fails_says_how_much_of_it_was_computed() -> None:
    rig = Rig(max_running=1)
    rig.submit(generate("a", range(6), max_tokens=50))
    rig.submit(generate("waiting", range(6)))
    rig.step(4)
    rig.core.fail_all(EngineUnavailable("stopped"))
    failed, waited = rig.failed("a"), rig.failed("waiting")
    assert (failed.computed_tokens, failed.completion_tokens) == (6, 4)
    assert failed.reused is not None
    assert (waited.computed_tokens, waited.completion_tokens) == (0, 0)
