"""Rows of a step fit its budget, reuse cached prefixes, and preempt the latest arrivals."""

from __future__ import annotations

import numpy as np
import pytest

from engine.link.messages import Cancel
from engine.scheduling.starts import SchedulerStuck
from engine.scheduling.step_builder import StepLimits
from prefix_cache.namespace import NamespacePath
from tests.doubles.engine.fake_runner import expected_output
from tests.engine.rigs.rig import NAMESPACE, Rig, generate


def shape(rig: Rig, number: int = -1) -> list[tuple[str, int, int]]:
    """Return the rows of step `number`: owner, start and number of tokens."""
    return [
        (owner.request_id, row.start, row.num_new)
        for row, owner in zip(rig.runner.steps[number].rows, rig.runner.owners[number], strict=True)
    ]


class TestBudget:
    def test_a_long_prompt_is_computed_in_chunks_of_the_budget(self) -> None:
        rig = Rig(max_batch_tokens=10)
        rig.submit(generate("a", range(25), max_tokens=2))
        rig.run()
        chunks = [shape(rig, number) for number in range(4)]
        assert chunks == [[("a", 0, 10)], [("a", 10, 10)], [("a", 20, 5)], [("a", 25, 1)]]

    def test_decodes_come_first_and_chunks_fill_the_rest(self) -> None:
        rig = Rig(max_batch_tokens=10)
        rig.submit(generate("decoding", [1, 2, 3], max_tokens=8))
        rig.step()
        rig.submit(generate("long", range(30), max_tokens=1))
        rig.step()
        assert shape(rig) == [("decoding", 3, 1), ("long", 0, 9)]
        rig.submit(generate("later", range(30, 60), max_tokens=1))
        rig.step()
        assert shape(rig) == [("decoding", 4, 1), ("long", 9, 9)]

    def test_a_chunk_of_one_token_stands_with_the_decodes(self) -> None:
        rig = Rig(max_batch_tokens=4, max_running=3)
        rig.submit(generate("a", [1, 2, 3], max_tokens=4))
        rig.submit(generate("b", [5, 6, 7, 8], max_tokens=4))
        rig.step()
        assert shape(rig) == [("b", 0, 1), ("a", 0, 3)]
        assert rig.link.tokens("b") == []
        rig.run()
        rig.expect_output(generate("b", [5, 6, 7, 8], max_tokens=4))

    def test_no_more_run_than_allowed(self) -> None:
        rig = Rig(max_running=2)
        requests = [generate(name, [ord(name) % 64, 2], max_tokens=3) for name in "abc"]
        for request in requests:
            rig.submit(request)
        rig.step()
        assert len(rig.scheduler.running) == 2
        assert len(rig.scheduler.queue) == 1
        rig.run()
        for request in requests:
            rig.expect_output(request)

    def test_a_lowered_budget_fits_every_decode_and_as_many_prompt_tokens(self) -> None:
        rig = Rig(max_batch_tokens=16, max_running=4)
        for name in "abc":
            rig.submit(generate(name, [ord(name) % 64, 2], max_tokens=9))
        rig.submit(generate("prompt", range(28), max_tokens=1))
        rig.step()
        rows = rig.scheduler.schedule(0.0, max_tokens=1).rows
        assert [row.num_new for row in rows] == [1, 1, 1, 5]

    @pytest.mark.parametrize(("tokens", "running"), [(0, 0), (4, 5), (4, 0)])
    def test_limits_that_could_not_work_are_refused(self, tokens: int, running: int) -> None:
        with pytest.raises(ValueError):
            StepLimits(tokens, running)
        StepLimits(4, 4)


class TestPrefixHits:
    def test_cached_tokens_are_not_computed(self) -> None:
        rig = Rig(max_batch_tokens=64)
        first = generate("first", range(20), max_tokens=1)
        second = generate("second", range(20), max_tokens=1)
        rig.submit(first)
        rig.run()
        rig.submit(second)
        rig.run()
        assert shape(rig) == [("second", 19, 1)]
        assert rig.finished("first").reused.tokens == 0
        assert rig.finished("second").reused.tokens == 19
        rig.expect_output(first)
        rig.expect_output(second)

    def test_generated_tokens_are_found_by_the_next_turn(self) -> None:
        rig = Rig(max_batch_tokens=64)
        rig.submit(generate("turn 1", range(8), max_tokens=9))
        rig.run()
        history = [*range(8), *rig.link.tokens("turn 1")]
        turn2 = generate("turn 2", [*history, 1, 2, 3], max_tokens=3)
        rig.submit(turn2)
        rig.run()
        assert rig.finished("turn 2").reused.tokens == 16
        rig.expect_output(turn2)

    def test_a_request_without_cache_neither_reads_nor_writes(self) -> None:
        rig = Rig(max_batch_tokens=64)
        for name, use_cache in (("a", True), ("b", False), ("c", True)):
            rig.submit(generate(name, range(20), max_tokens=1, use_cache=use_cache))
            rig.run()
        assert [rig.finished(name).reused.tokens for name in "abc"] == [0, 0, 19]
        rig = Rig(max_batch_tokens=64)
        for name, use_cache in (("a", False), ("b", True)):
            rig.submit(generate(name, range(20), max_tokens=1, use_cache=use_cache))
            rig.run()
        assert rig.finished("b").reused.tokens == 0


class TestPreemption:
    @pytest.mark.parametrize("overlap_scheduling", [False, True])
    def test_the_latest_arrival_gives_way_and_comes_back(self, overlap_scheduling: bool) -> None:
        """Preempt the latest arrival, and resume it.

        With overlapped steps, it computes the dropped pending token again.
        """
        rig = Rig(
            num_blocks=8, block_size=4, max_batch_tokens=32, overlap_scheduling=overlap_scheduling
        )
        elder = generate("elder", range(8), max_tokens=16)
        younger = generate("younger", range(20, 32), max_tokens=8)
        rig.submit(elder)
        rig.step()
        rig.submit(younger)
        rig.run()
        assert rig.scheduler.active.num_preemptions > 0
        rig.expect_output(elder)
        rig.expect_output(younger)
        # counts the tokens that were cached when the request was first admitted
        assert rig.finished("younger").reused.tokens == 0
        rig.expect_nothing_left()

    def test_the_oldest_is_never_preempted(self) -> None:
        rig = Rig(num_blocks=12, block_size=2, max_batch_tokens=32)
        oldest = generate("oldest", range(4), max_tokens=16, block_size=2)
        rig.submit(oldest)
        rig.step()
        others = [generate(str(n), [n + 30] * 4, max_tokens=12, block_size=2) for n in range(5)]
        for request in others:
            rig.submit(request)
        for number in range(2, 17):  # one token a step, as if the sequence ran alone
            rig.step()
            assert len(rig.link.tokens("oldest")) == number
        assert rig.scheduler.active.num_preemptions > 0
        rig.run()
        for request in (oldest, *others):
            rig.expect_output(request)

    def test_resuming_finds_the_blocks_again(self) -> None:
        rig = Rig(num_blocks=32, block_size=4, max_batch_tokens=64)
        request = generate("a", range(20), max_tokens=8)
        rig.submit(request)
        rig.step(3)
        [sequence] = rig.scheduler.running
        rig.scheduler.active.preempt(sequence, rig.clock())
        computed = rig.runner.tokens_computed
        rig.step()
        assert rig.runner.tokens_computed - computed <= 4
        assert rig.scheduler.active.num_preemptions == 1
        rig.run()
        rig.expect_output(request)

    def test_a_sequence_that_runs_alone_may_have_to_be_preempted(self) -> None:
        """Preempt a sequence that runs alone, once its own blocks and the tree's equal blocks,
        which another sequence computed, fill the pool.
        """
        rig = Rig(num_blocks=12, block_size=2, max_batch_tokens=32)
        elder = generate("elder", [1, 2, 3, 4], max_tokens=18, block_size=2)
        rig.submit(elder)
        rig.step(2)
        future = [1, 2, 3, 4, *expected_output([1, 2, 3, 4], 11)]
        prophet = generate("prophet", future, max_tokens=1, block_size=2)
        rig.submit(prophet)
        rig.run()
        assert rig.scheduler.active.num_preemptions == 1
        # the request's answer had ended long before
        assert rig.finished("prophet").completion_tokens == 1
        rig.expect_output(elder)
        rig.expect_output(prophet)
        rig.expect_nothing_left()

    def test_many_large_requests_all_come_through_a_tiny_pool(self) -> None:
        rig = Rig(num_blocks=10, block_size=2, max_batch_tokens=8, max_running=8)
        requests = [
            generate(str(n), [n, n + 1, n + 2], max_tokens=14, flow=f"f{n % 3}", block_size=2)
            for n in range(12)
        ]
        for request in requests:
            rig.submit(request)
        rig.run(max_steps=2000)
        assert rig.scheduler.active.num_preemptions > 0
        for request in requests:
            rig.expect_output(request)
        rig.expect_nothing_left()


class TestFairness:
    def test_a_flood_does_not_keep_another_flow_waiting(self) -> None:
        rig = Rig(num_blocks=256, max_running=4, max_batch_tokens=16, quantum=16)
        for n in range(60):
            rig.submit(generate(f"flood {n}", [n, n + 1, n + 2], max_tokens=8, flow="flood"))
        rig.step(5)
        rig.submit(generate("quiet", [61, 62, 63], max_tokens=8, flow="quiet"))
        steps = 0
        while len(rig.link.tokens("quiet")) < 8:
            rig.step()
            steps += 1
        # a batch slot becomes free within 8 steps, and the request itself takes 8
        assert steps <= 3 * 8
        assert rig.core.stats().waiting > 30

    def test_a_cold_request_is_not_starved_by_warm_ones_of_its_flow(self) -> None:
        rig = Rig(num_blocks=256, max_running=1, max_batch_tokens=64)
        warm = [7] * 16
        rig.submit(generate("first", warm, max_tokens=1))
        rig.run()
        rig.submit(generate("running", warm, max_tokens=2))
        rig.submit(generate("cold", range(20, 40), max_tokens=1))
        for n in range(30):
            rig.submit(generate(f"warm {n}", [*warm, n], max_tokens=2))
            rig.step(2)
        assert rig.finished("cold").reason == "length"
        assert rig.scheduler.queue  # cached requests never ran out


class TestEnds:
    def test_a_queue_that_nothing_leaves_is_a_defect(self) -> None:
        rig = Rig(num_blocks=8, block_size=4)
        path = NamespacePath.single(NAMESPACE)
        leak = rig.cache.acquire(path, np.zeros(16, np.int32), owner="nobody", now=0.0)
        assert leak is not None  # blocks that no sequence will release
        rig.submit(generate("a", range(20), max_tokens=1))
        with pytest.raises(SchedulerStuck):
            rig.step()

    def test_stopping_a_sequence_wherever_it_is(self) -> None:
        rig = Rig(max_running=1)
        rig.submit(generate("running", range(6), max_tokens=9))
        rig.submit(generate("waiting", range(6), max_tokens=9))
        rig.step()
        for name in ("waiting", "running"):
            rig.link.say(Cancel(name))
        rig.run()
        assert rig.finished("running").reason == rig.finished("waiting").reason == "cancelled"
        rig.expect_nothing_left()


class TestNewcomers:
    def test_a_long_prompt_of_one_flow_does_not_hold_up_another(self) -> None:
        rig = Rig(max_batch_tokens=16, num_blocks=128)
        flood = generate("flood", [n % 60 for n in range(160)], flow="flood", max_tokens=1)
        rig.submit(flood)
        rig.step(2)
        victim = generate("victim", [3, 1, 4, 1, 5], flow="victim", max_tokens=1)
        rig.submit(victim)
        rig.step()
        assert rig.finished("victim").completion_tokens == 1, "not behind the whole long prompt"
        rig.run()
        for request in (flood, victim):
            rig.expect_output(request)
        rig.expect_nothing_left()

    def test_no_tokens_are_kept_for_who_cannot_start(self) -> None:
        """Reserve no tokens of a step for prompts that have no batch slot to run in."""
        rig = Rig(max_batch_tokens=16, num_blocks=128, max_running=1)
        rig.submit(generate("flood", [n % 60 for n in range(160)], flow="flood", max_tokens=1))
        rig.step()
        rig.submit(generate("victim", [3, 1, 4, 1, 5], flow="victim", max_tokens=1))
        before = rig.runner.tokens_computed
        rig.step(3)
        assert rig.runner.tokens_computed - before == 3 * 16
        rig.run()
        rig.expect_nothing_left()


def test_a_flow_is_known_while_it_has_anything_alive() -> None:
    rig = Rig(max_running=1)
    rig.submit(generate("runs", [1, 2, 3], flow="a", max_tokens=4))
    rig.submit(generate("waits", [4, 5, 6], flow="b", max_tokens=4))
    rig.step()
    alive = [rig.scheduler.has_any_of(flow) for flow in ("a", "b", "c")]
    assert alive == [True, True, False]
    rig.run()
    assert not rig.scheduler.has_any_of("a")
