"""Late masks: when the device gets them, and which rows a step leaves out. The answers stay the
same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from engine.errors import EngineFailure
from engine.in_flight.launches import MARGIN_S, MOST_PATIENCE_S, UNKNOWN_S
from engine.in_flight.masked_step import LONGEST_PART, LOST_STEPS
from engine.link.messages import Cancel, Generate, Grammar, SamplingParams
from engine.scheduling.step_times import StepShape
from engine.sequences.token_constraint import WantedMasks
from tests.doubles.constraints import HeldMasks, LateScript, Script, steps_allow, steps_of
from tests.doubles.engine.fake_runner import VOCAB_SIZE, expected_output, next_kv, next_token
from tests.engine.rigs.rig import EOS, Rig, generate

ANY = Grammar("regex", ".*")
both = pytest.mark.parametrize("overlap_scheduling", [False, True])


def rig_of(masks: HeldMasks | None = None, **settings: Any) -> Rig:
    masks = masks or HeldMasks()
    rig = Rig(constraint_of=steps_of, masks=masks, **settings)
    masks.events = rig.runner.events
    rig.runner.waits = lambda: rig.runner.events.append("collect")
    return rig


def bound(
    name: str, prompt: Sequence[int], max_tokens: int = 8, *, stops: bool = False, **how: Any
) -> Generate:
    """Return a request with a grammar, whose answer depends on its name but not on the batch."""
    wish = SamplingParams(max_tokens=max_tokens, ignore_eos=not stops, grammar=ANY)
    return generate(name, prompt, sampling=wish, **how)


def answer(prompt: Sequence[int], n: int, stops: Sequence[int] = ()) -> list[int]:
    """Compute by hand the answer to a request with a grammar."""
    kv, said = [0], list[int]()
    for token_id in prompt:
        kv.append(next_kv(kv[-1], token_id))
    while len(said) < n and not (said and said[-1] in stops):
        wanted = next_token(kv[1:])
        allowed = steps_allow(said, VOCAB_SIZE)
        said.append(next((one for one in allowed if one >= wanted), allowed[0]))
        kv.append(next_kv(kv[-1], said[-1]))
    return said


class TestOrder:
    def test_forward_then_the_values_before_then_masks_then_the_sampling(self) -> None:
        rig = rig_of(overlap_scheduling=True)
        rig.submit(bound("a", range(6), 3))
        rig.run()
        first = ["forward", "make", "made", "sample"]
        later = ["forward", "collect", "make", "made", "sample"]
        assert rig.runner.events == [*first, *later, *later, "collect"]

    def test_without_overlap_each_step_is_collected_before_the_next(self) -> None:
        rig = rig_of()
        rig.submit(bound("a", range(6), 2))
        rig.run()
        assert rig.runner.events == ["forward", "make", "made", "sample", "collect"] * 2

    def test_replies_of_the_step_before_are_sent_while_masks_are_made(self) -> None:
        masks = HeldMasks()
        rig = rig_of(masks, overlap_scheduling=True)
        told, told_when_asked = list[int](), list[int]()
        wait, make = masks.wait, masks.make

        def made(wanted: Iterable[WantedMasks]) -> HeldMasks:
            told_when_asked.append(len(rig.link.tokens("a")))
            return make(wanted)

        def waited(seconds: float) -> None:
            told.append(len(rig.link.tokens("a")))
            wait(seconds)

        masks.wait, masks.make = waited, made  # type: ignore[method-assign]
        rig.submit(bound("a", range(6), 3))
        rig.run()
        assert told_when_asked == [0, 0, 1]
        assert told == [0, 1, 2]

    def test_a_batch_without_constraints_is_launched_at_once_and_nobody_asks_for_masks(
        self,
    ) -> None:
        rig = rig_of(overlap_scheduling=True)
        for number in range(3):
            rig.submit(generate(str(number), range(number, number + 4), max_tokens=3))
        rig.run()
        assert rig.runner.events == ["launch", *["launch", "collect"] * 2, "collect"]

    def test_a_chunk_of_a_prompt_that_samples_nothing_waits_for_no_mask(self) -> None:
        rig = rig_of(overlap_scheduling=True, max_batch_tokens=8)
        rig.submit(bound("a", range(20), 1))
        rig.run()
        events = [event for event in rig.runner.events if event in ("launch", "forward")]
        assert events == ["launch", "launch", "forward"]


class TestAnswers:
    @both
    def test_of_64_constrained_rows(self, overlap_scheduling: bool) -> None:
        rig = rig_of(
            overlap_scheduling=overlap_scheduling,
            num_blocks=1024,
            max_running=64,
            max_batch_tokens=512,
        )
        prompts = {str(n): [n, 63 - n, 7] for n in range(64)}
        for name, prompt in prompts.items():
            rig.submit(bound(name, prompt, 8))
        rig.run()
        assert {name: rig.link.tokens(name) for name in prompts} == {
            name: answer(prompt, 8) for name, prompt in prompts.items()
        }
        assert len(rig.runner.steps) == 8, "each is in every step"
        rig.expect_nothing_left()

    @both
    def test_of_mixed_rows(self, overlap_scheduling: bool) -> None:
        rig = rig_of(overlap_scheduling=overlap_scheduling, num_blocks=256)
        for number in range(8):
            make = bound if number % 2 else generate
            rig.submit(make(str(number), range(number, number + 5), max_tokens=9))
        rig.run()
        for number in range(8):
            expected = answer if number % 2 else expected_output
            assert rig.link.tokens(str(number)) == expected(range(number, number + 5), 9)
        assert len(rig.runner.steps) <= 12
        rig.expect_nothing_left()

    @both
    def test_where_blocks_are_few_and_sequences_are_preempted(
        self, overlap_scheduling: bool
    ) -> None:
        rig = rig_of(overlap_scheduling=overlap_scheduling, num_blocks=14, max_batch_tokens=32)
        for number in range(6):
            rig.submit(bound(str(number), [number] * 5, 16))
        rig.run()
        assert rig.scheduler.active.num_preemptions > 0
        for number in range(6):
            assert rig.link.tokens(str(number)) == answer([number] * 5, 16)
        rig.expect_nothing_left()

    @both
    def test_where_a_stop_token_comes(self, overlap_scheduling: bool) -> None:
        rig = rig_of(overlap_scheduling=overlap_scheduling, num_blocks=256)
        prompts = {str(n): [n, 5] for n in range(60)}
        for name, prompt in prompts.items():
            rig.submit(bound(name, prompt, 12, stops=True))
        rig.run()
        stopped = 0
        for name, prompt in prompts.items():
            expected = answer(prompt, 12, [EOS])
            stopped += expected[-1] == EOS
            assert rig.link.tokens(name) == [one for one in expected if one != EOS]
        assert 0 < stopped < 60
        rig.expect_nothing_left()

    @both
    @pytest.mark.parametrize("after", [1, 2, 3, 4])
    def test_where_one_is_cancelled(self, overlap_scheduling: bool, after: int) -> None:
        rig = rig_of(overlap_scheduling=overlap_scheduling)
        rig.submit(bound("gone", range(6), 50))
        rig.submit(bound("stays", range(9, 14), 9))
        rig.submit(generate("free", range(30, 36), max_tokens=9))
        rig.step(after)
        rig.link.say(Cancel("gone"))
        rig.run()
        said = rig.link.tokens("gone")
        assert said == answer(range(6), len(said))
        assert rig.link.tokens("stays") == answer(range(9, 14), 9)
        assert rig.link.tokens("free") == expected_output(range(30, 36), 9)
        rig.expect_nothing_left()

    def test_all_that_wait_for_masks_end_when_the_engine_fails_them(self) -> None:
        rig = rig_of(HeldMasks(held={0}), overlap_scheduling=True)
        rig.submit(bound("a", range(6)))
        rig.submit(bound("b", range(9)))
        rig.step()
        rig.core.fail_all(EngineFailure("the engine breaks"))
        assert (rig.failed("a").code, rig.failed("b").code) == ("engine_failure",) * 2
        assert rig.runner.on_their_way == []
        rig.expect_nothing_left()


class TestPatience:
    """Tests that steps wait for masks as long as the device has other work."""

    @staticmethod
    def patience(
        takes_s: float, asking_s: float = 0.0, late: int | None = None, others: int = 0
    ) -> list[float]:
        """Return each step's wait for masks, in seconds.

        The device takes `takes_s` for a step, and an iteration of the step loop takes 1 ms more.
        """
        masks = HeldMasks(held=set() if late is None else {late})
        rig = rig_of(masks, overlap_scheduling=True, num_blocks=512, max_running=1 + others)
        rig.runner.waits = lambda: rig.wait(takes_s)
        make = masks.make

        def made(wanted: Iterable[WantedMasks]) -> HeldMasks:
            rig.wait(asking_s)
            return make(wanted)

        masks.make = made  # type: ignore[method-assign]
        rig.submit(bound("a", range(6), 40))
        for number in range(others):
            rig.submit(generate(str(number), [number], max_tokens=50))
        rig.step(40)
        return masks.patience

    def test_nothing_is_known_of_the_first_step(self) -> None:
        assert self.patience(0.02)[0] == UNKNOWN_S

    @pytest.mark.parametrize("takes_s", [0.003, 0.008, 0.03])
    def test_ends_before_the_device_waits_for_the_next_step(self, takes_s: float) -> None:
        later = self.patience(takes_s)[20:]
        assert later == pytest.approx([takes_s + 0.001 - MARGIN_S] * len(later), rel=0.05)

    def test_is_what_is_left_of_the_step(self) -> None:
        later = self.patience(0.005, asking_s=0.05)[20:]
        assert later == pytest.approx([0.005] * len(later), rel=0.05)

    @pytest.mark.parametrize(("others", "part"), [(0, LONGEST_PART), (15, LOST_STEPS / 16)])
    def test_who_is_late_is_worth_as_much_of_a_step_as_there_are_such(
        self, others: int, part: float
    ) -> None:
        [in_time, late] = self.patience(0.02, late=25, others=others)[-2:]
        assert in_time == pytest.approx(0.02, rel=0.05)
        assert late == pytest.approx(part * 0.021, rel=0.05)

    @pytest.mark.parametrize("late", [25, None])
    def test_is_not_learned_from_a_step_that_was_held_up(self, late: int | None) -> None:
        """Do not learn a step's time if its masks were late.

        Otherwise masks that are always late would make each step wait longer than the step before.
        """
        masks = HeldMasks(held=set() if late is None else {late})
        rig = rig_of(masks, overlap_scheduling=True, num_blocks=512)
        is_slow = iter([*[False] * 24, *[True] * 4])
        rig.runner.waits = lambda: rig.wait(0.2 if next(is_slow, False) and late is None else 0.01)
        wait = masks.wait

        def waited(seconds: float) -> None:
            rig.wait(0.2 if masks.busy else 0.0)  # longer than allowed, so that the test sees it
            wait(seconds)

        masks.wait = waited  # type: ignore[method-assign]
        rig.submit(bound("a", range(6), 40))
        rig.submit(generate("free", range(9), max_tokens=40))
        rig.step(30)
        assert (rig.core.components.times.seconds(StepShape(1, 30)) < 0.02) is (late is not None)

    def test_has_a_bound(self) -> None:
        assert max(self.patience(2.0)) == MOST_PATIENCE_S


class TestLeftOut:
    @both
    @pytest.mark.parametrize("held", [0, 1, 3])
    @pytest.mark.parametrize("length", [1, 6, 8, 9])
    def test_who_has_no_mask_in_time_holds_up_nobody_and_says_the_same(
        self, length: int, held: int, overlap_scheduling: bool
    ) -> None:
        masks = HeldMasks(held={held})
        rig = rig_of(masks, overlap_scheduling=overlap_scheduling, max_batch_tokens=32)
        prompt = list(range(length))
        rig.submit(bound("slow", prompt, 6))
        rig.submit(generate("free", range(30, 36), max_tokens=20))
        rig.step(10)
        assert len(rig.link.tokens("slow")) == held
        assert len(rig.link.tokens("free")) == (9 if overlap_scheduling else 10), "in each step"
        rows = sum(len(step.rows) for step in rig.runner.steps[-4:])
        assert rows == 4, "it is in no step until its mask is there"
        assert rig.core.components.counters.rows_left_out == 1
        masks.release()
        rig.run()
        assert rig.link.tokens("slow") == answer(prompt, 6)
        assert rig.link.tokens("free") == expected_output(range(30, 36), 20)
        rig.expect_nothing_left()

    def test_a_mask_that_came_late_is_not_asked_for_again(self) -> None:
        """Do not request a late mask twice: the second request would wait after other rows' masks,
        and be late again.
        """
        masks = HeldMasks(held={1})
        rig = rig_of(masks, overlap_scheduling=True)
        rig.submit(bound("slow", range(6), 4))
        rig.step(6)
        masks.release()
        rig.run()
        assert masks.num_made == 4

    def test_a_lone_one_waits_without_steps(self) -> None:
        masks = HeldMasks(held={2})
        rig = rig_of(masks, overlap_scheduling=True)
        rig.submit(bound("slow", range(6), 6))
        rig.step(12)
        assert len(rig.runner.steps) == 3
        masks.release()
        rig.run()
        assert len(rig.runner.steps) == 7, "one was computed twice"
        assert rig.link.tokens("slow") == answer(range(6), 6)

    @both
    def test_it_may_be_cancelled_or_preempted_meanwhile(self, overlap_scheduling: bool) -> None:
        masks = HeldMasks(held={3})
        rig = rig_of(masks, overlap_scheduling=overlap_scheduling, max_batch_tokens=32)
        rig.submit(bound("gone", range(7), 9))
        rig.submit(bound("back", range(20, 26), 9))
        rig.step(8)
        assert len(masks.busy) == 2
        rig.link.say(Cancel("gone"))
        rig.step()
        [waiting] = rig.scheduler.running
        rig.scheduler.active.preempt(waiting, rig.clock())
        rig.step(4)
        assert rig.link.tokens("back") == answer(range(20, 26), 3)
        masks.release()
        rig.run()
        assert rig.link.tokens("gone") == answer(range(7), 3)
        assert rig.link.tokens("back") == answer(range(20, 26), 9)
        rig.expect_nothing_left()

    def test_its_whole_blocks_are_committed_once_they_are_computed_for_good(self) -> None:
        masks = HeldMasks(held={0})
        rig = rig_of(masks, overlap_scheduling=True, max_batch_tokens=32, deadline_s=0.0)
        rig.submit(bound("slow", range(8), 1))
        rig.step(4)
        again = generate("again", range(8), max_tokens=1)
        rig.submit(again)
        rig.step(3)
        assert rig.finished("again").reused.tokens == 4, "its last block is not whole yet"
        masks.release()
        rig.run()
        assert rig.link.tokens("slow") == answer(range(8), 1)
        rig.expect_nothing_left()


class TestOutOfMemory:
    @both
    def test_a_constrained_request_fails_and_all_others_say_the_same(
        self, overlap_scheduling: bool
    ) -> None:
        rig = rig_of(overlap_scheduling=overlap_scheduling)
        rig.submit(generate("free", range(6), max_tokens=9))
        rig.submit(bound("first", range(9, 14), 9))
        rig.submit(bound("second", range(20, 29), 9))
        rig.step(4)
        rig.runner.raising_late = [MemoryError()]
        rig.run()
        assert "skip" in rig.runner.events
        ends = {name: type(rig.link.last(name)).__name__ for name in ("free", "first", "second")}
        assert sorted(ends.values()) == ["Failed", "Finished", "Finished"]
        assert ends["free"] == "Finished"
        failed, spared = ("first", "second") if ends["first"] == "Failed" else ("second", "first")
        assert rig.failed(failed).code == "engine_failure"
        prompt = range(9, 14) if spared == "first" else range(20, 29)
        assert rig.link.tokens(spared) == answer(prompt, 9)
        assert rig.link.tokens("free") == expected_output(range(6), 9)
        rig.expect_nothing_left()

    def test_what_new_requests_brought_is_sent_again(self) -> None:
        rig = rig_of(overlap_scheduling=True, max_batch_tokens=32)
        rig.runner.raising_late = [MemoryError()]
        rig.submit(generate("free", range(6), max_tokens=3))
        rig.submit(bound("bound", range(9, 14), 3))
        rig.run()
        new = [row.new is not None for step in rig.runner.steps for row in step.rows]
        assert new[:3] == [True, True, True]
        rig.expect_output(generate("free", range(6), max_tokens=3))


@both
@pytest.mark.parametrize("is_late", [True, False])
def test_who_was_behind_at_its_last_token_ends_there(
    is_late: bool, overlap_scheduling: bool
) -> None:
    script = [{5}, {6, 7}, {8}]

    def constraint_of(sampling: SamplingParams, flow: str) -> Script | None:
        if sampling.grammar is None:
            return None
        return LateScript(script, VOCAB_SIZE, EOS) if is_late else Script(script, VOCAB_SIZE)

    rig = Rig(constraint_of=constraint_of, overlap_scheduling=overlap_scheduling)
    rig.submit(bound("a", range(6)))
    rig.submit(generate("free", range(10, 16), max_tokens=6))
    rig.run()
    told = rig.link.tokens("a")
    assert (len(told), told[0], told[-1]) == (3, 5, 8)
    assert (rig.finished("a").reason, rig.finished("a").completion_tokens) == ("stop", 3)
    assert rig.finished("free").completion_tokens == 6
