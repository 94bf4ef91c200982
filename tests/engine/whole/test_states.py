"""A model with recurrent layers: every token is right, whichever state its sequence started from.

`StatefulRunner` raises if a row reads the state of another sequence or position.
"""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from engine.link.messages import Cancel, Mark, pack_token_ids
from engine.link.query_messages import Probe, Probed
from engine.link.stats.tier_stats import TierTokens
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import NamespacePath
from prefix_cache.tiers.tier_pools import Tiers
from storage.move import Tier
from tests.doubles.constraints import HeldMasks, steps_of
from tests.doubles.engine.fake_runner import expected_output
from tests.engine.in_flight.test_masked_step import answer, bound
from tests.engine.rigs.rig import CLIENT, NAMESPACE, OTHER, Rig, generate
from tests.engine.rigs.simulation import Tally, simulate

STEPS = 3_000
both = pytest.mark.parametrize("overlap_scheduling", [False, True])


@pytest.fixture(scope="module", params=[False, True])
def tally(request: pytest.FixtureRequest) -> Tally:
    """Simulate a model with recurrent states, or with rings that decodes overwrite."""
    return simulate(STEPS, seed=2, check_every=8, has_states=True, in_place=request.param)


def test_every_request_was_told_what_its_prompt_gives_alone(tally: Tally) -> None:
    assert tally.ends["length"] > STEPS / 20
    assert tally.written_in_place > 0, "recurrent states too, where slots were short"
    assert min(tally.cached["device"], tally.preemptions, tally.ends["cancelled"]) > 0


@pytest.mark.parametrize(
    "what", ["made", "hits", "evicted", "refused", "copied_down", "loaded", "failed"]
)
def test_checkpoints_came_and_went(tally: Tally, what: str) -> None:
    assert tally.checkpoints[what] > 0


def rig_of(masks: HeldMasks | None = None, *, num_states: int = 63, **settings: object) -> Rig:
    masks = masks or HeldMasks()
    return Rig(constraint_of=steps_of, masks=masks, num_states=num_states, **settings)  # type: ignore[arg-type]


def cached(rig: Rig, name: str) -> int:
    return rig.finished(name).reused.tokens


def text(length: int) -> list[int]:
    return [one * one % 61 for one in range(length)]


class TestPositions:
    """Tests of the positions whose states are kept, at which a later request can start."""

    @both
    def test_the_next_turn_begins_at_the_end_of_the_answer(self, overlap_scheduling: bool) -> None:
        rig = rig_of(overlap_scheduling=overlap_scheduling)
        first = generate("1", range(1, 11), max_tokens=12)
        rig.submit(first)
        rig.run()
        rig.expect_output(first)
        said = rig.link.tokens("1")
        rig.submit(generate("2", [*range(1, 11), *said, 7, 7], max_tokens=3))
        rig.run()
        assert cached(rig, "2") == 20  # 20 of 22 tokens; the last one was not computed

    def test_a_long_prompt_is_kept_up_to_the_block_before_its_last_token(self) -> None:
        rig = rig_of(max_batch_tokens=256)
        rig.submit(generate("1", text(141), max_tokens=1))
        rig.run()
        rig.submit(generate("2", [*text(141), 5, 5, 5], max_tokens=1))
        rig.run()
        assert cached(rig, "2") == 140

    @pytest.mark.parametrize(("length", "rows"), [(128, [128]), (129, [128, 1]), (7, [7])])
    def test_a_short_prompt_is_computed_in_one_step(self, length: int, rows: list[int]) -> None:
        """Compute a short prompt in one step, without a state at its end.

        The next prompt computes more tokens, but in equally many steps.
        """
        rig = rig_of(max_batch_tokens=256)
        rig.submit(generate("1", text(length), max_tokens=1))
        rig.run()
        assert [row.num_new for step in rig.runner.steps for row in step.rows] == rows

    def test_where_the_second_parts_the_third_begins(self) -> None:
        rig = rig_of(max_batch_tokens=64)
        trunk = list(range(1, 23))
        for name in "123":
            rig.submit(generate(name, [*trunk, *[int(name)] * 9], max_tokens=1))
            rig.run()
        assert [cached(rig, name) for name in "123"] == [0, 0, 20]

    def test_cold_requests_of_one_prefix_compute_it_once(self) -> None:
        rig = rig_of(max_batch_tokens=64)
        trunk = list(range(1, 25))
        for name in "1234":
            rig.submit(generate(name, [*trunk, *[int(name)] * 7], max_tokens=2))
        rig.run()
        assert sorted(cached(rig, name) for name in "1234") == [0, 24, 24, 24]

    def test_what_matched_further_than_its_state_is_said(self) -> None:
        rig = rig_of(max_batch_tokens=64)
        rig.submit(generate("1", range(1, 31), max_tokens=1))
        rig.run()
        prompt = [*range(1, 26), 5, 5]
        rig.link.say(
            Probe(query_id="p", token_ids=pack_token_ids(prompt), namespaces=((0, NAMESPACE),))
        )
        rig.submit(generate("2", prompt, max_tokens=1))
        rig.run()
        [probed] = [one for one in rig.link.sent[CLIENT] if isinstance(one, Probed)]
        assert (probed.tiers.total, probed.matched) == (0, 24)
        assert (cached(rig, "2"), rig.finished("2").reused.matched) == (0, 24)
        states = rig.core.stats().states
        assert (states.made, states.hits, states.checkpoints) == (1, 0, 1)
        assert states.total == 62 == states.free + states.checkpoints
        assert states.cut_tokens == 24

    def test_the_end_of_a_mark_is_kept(self) -> None:
        rig = rig_of()
        request = generate("1", range(1, 31), max_tokens=1)
        rig.submit(structs.replace(request, marks=(Mark(num_tokens=18, seconds=60.0),)))
        rig.run()
        rig.submit(generate("2", [*range(1, 17), *[5] * 8], max_tokens=1))
        rig.run()
        assert cached(rig, "2") == 16

    @pytest.mark.parametrize(("hint", "found"), [(151, 148), (0, 0)])
    def test_another_question_begins_where_the_first_one_did(self, hint: int, found: int) -> None:
        rig = rig_of(max_batch_tokens=256)
        for name in "12":
            request = generate(name, [*text(151), *[int(name)] * 9], max_tokens=1)
            rig.submit(structs.replace(request, question=hint))
            rig.run()
            rig.expect_output(request)
        assert cached(rig, "2") == found
        rows = [row.num_new for row in rig.runner.steps[0].rows]
        assert rows == [148 if hint else 156], "the hint costs no step of its own"

    def test_a_question_soon_after_what_is_cached_is_not_kept(self) -> None:
        rig = rig_of(max_batch_tokens=256)
        rig.submit(structs.replace(generate("1", text(90), max_tokens=1), question=80))
        rig.run()
        assert [row.num_new for step in rig.runner.steps for row in step.rows] == [90]

    @pytest.mark.parametrize(
        ("same", "own", "found"), [(1_300, 120, 1_160), (1_300, 270, 0), (1_100, 120, 0)]
    )
    def test_a_short_question_behind_a_long_text_begins_near_its_end(
        self, same: int, own: int, found: int
    ) -> None:
        rig = rig_of(max_batch_tokens=4_096, num_blocks=1_024)
        for name in "12":
            request = generate(name, [*text(same), *[int(name)] * own], max_tokens=1)
            rig.submit(request)
            rig.run()
            rig.expect_output(request)
        assert cached(rig, "2") == found

    def test_a_text_with_a_known_question_near_its_end_has_no_other_state(self) -> None:
        rig = rig_of(max_batch_tokens=4_096, num_blocks=1_024)
        rig.submit(structs.replace(generate("1", text(1_500), max_tokens=1), question=1_300))
        rig.run()
        assert [row.num_new for step in rig.runner.steps for row in step.rows] == [1_300, 196, 4]

    @pytest.mark.parametrize(("question", "rows"), [(140, [156, 156, 4]), (300, [156, 144, 16])])
    def test_no_state_is_kept_at_a_question_in_what_others_read_too(
        self, question: int, rows: list[int]
    ) -> None:
        """Keep no state at the fork of a prompt whose text others read too, which would reveal the
        fork.

        Within a request's own text the state is kept.
        """
        rig = rig_of(max_batch_tokens=512, num_blocks=128)
        path, prompt = NamespacePath(((0, OTHER), (39, NAMESPACE))), text(316)
        keys = block_keys(path, np.array(prompt, np.int32), 4)
        request = generate("1", prompt, max_tokens=1)
        rig.submit(
            structs.replace(request, namespaces=path.spans, block_keys=keys, question=question)
        )
        rig.run()
        assert [row.num_new for step in rig.runner.steps for row in step.rows] == rows

    def test_a_question_outside_of_the_prompt_is_refused(self) -> None:
        rig = rig_of()
        for question in (-1, 10):
            rig.submit(structs.replace(generate(str(question), range(9)), question=question))
        rig.run()
        assert {rig.failed(name).code for name in ("-1", "10")} == {"invalid_request"}

    def test_a_cancelled_prompt_leaves_what_it_had(self) -> None:
        rig = rig_of(max_batch_tokens=10)
        rig.submit(generate("1", range(1, 41), max_tokens=1))
        rig.step(3)
        rig.link.say(Cancel("1"))
        rig.step()
        rig.submit(generate("2", range(1, 41), max_tokens=1))
        rig.run()
        assert cached(rig, "2") == 24  # chunks of 8 tokens end with whole blocks
        assert rig.link.tokens("2") == expected_output(range(1, 41), 1)


class TestTiers:
    """Tests of lower tiers for a device with blocks for all prompts, but too few slots for their
    states.
    """

    def pushed_out(self) -> tuple[Rig, list[int]]:
        rig = rig_of(
            num_states=7, num_blocks=256, tiers=Tiers(host_blocks=8, host_states=12, state_blocks=3)
        )
        rig.submit(generate("1", range(1, 15), max_tokens=6))
        for other in range(5):
            rig.run()
            rig.settle_copies()
            rig.submit(generate(f"other {other}", range(20 + other, 40 + other), max_tokens=6))
        rig.run()
        rig.settle_copies()
        return rig, [*range(1, 15), *rig.link.tokens("1"), 7, 7]

    def test_a_turn_starts_once_the_host_has_sent_its_state(self) -> None:
        rig, prompt = self.pushed_out()
        rig.mover.held.add(Tier.DEVICE)
        request = generate("2", prompt, max_tokens=3)
        rig.submit(request)
        rig.step(20)
        assert not rig.link.tokens("2")
        rig.mover.held.clear()
        rig.run()
        rig.expect_output(request)
        assert cached(rig, "2") == 16
        states = rig.core.stats().states
        assert (states.loaded, states.hits, states.lower["host"].used) == (1, 1, 6)
        reused = rig.finished("2").reused
        assert (reused.tiers, reused.state_tier) == (TierTokens(16), "host")

    def test_a_probe_names_the_tier_of_the_state_too(self) -> None:
        rig, prompt = self.pushed_out()
        rig.link.say(
            Probe(query_id="p", token_ids=pack_token_ids(prompt), namespaces=((0, NAMESPACE),))
        )
        rig.step()
        [probed] = [one for one in rig.link.sent[CLIENT] if isinstance(one, Probed)]
        assert (probed.tiers, probed.state_tier) == (TierTokens(16), "host")
        request = generate("other", range(20, 60), max_tokens=1)
        rig.submit(request)
        rig.run()
        assert rig.finished("other").reused.state_tier is None

    @pytest.mark.parametrize("fate", ["failed", "lost"])
    def test_a_state_that_does_not_come_is_computed(self, fate: str) -> None:
        rig, prompt = self.pushed_out()
        rig.mover.choose_fate = lambda move: "done" if move.source_tier is Tier.DEVICE else fate
        request = generate("2", prompt, max_tokens=3)
        rig.submit(request)
        rig.run()
        rig.expect_output(request)
        assert cached(rig, "2") == 0
        assert rig.core.stats().failed_loads == 1
        rig.expect_nothing_left()


class TestLaunches:
    @both
    @pytest.mark.parametrize("held", [0, 1, 3])
    @pytest.mark.parametrize("length", [1, 6, 8, 9])
    def test_a_row_left_out_is_computed_again_from_its_state(
        self, length: int, held: int, overlap_scheduling: bool
    ) -> None:
        masks = HeldMasks(held={held})
        rig = rig_of(masks, overlap_scheduling=overlap_scheduling, max_batch_tokens=32)
        prompt = list(range(length))
        rig.submit(bound("slow", prompt, 6))
        rig.submit(generate("free", range(30, 36), max_tokens=20))
        rig.step(10)
        masks.release()
        rig.run()
        assert rig.core.components.counters.rows_left_out == 1
        assert rig.link.tokens("slow") == answer(prompt, 6)
        assert rig.link.tokens("free") == expected_output(range(30, 36), 20)
        rig.expect_nothing_left()

    @both
    @pytest.mark.parametrize("at", range(1, 12, 2))
    def test_a_launch_that_failed_is_repeated(self, at: int, overlap_scheduling: bool) -> None:
        rig = rig_of(overlap_scheduling=overlap_scheduling, max_batch_tokens=12)
        requests = [generate(str(n), range(n, n + 14), max_tokens=9) for n in range(1, 4)]
        for request in requests:
            rig.submit(request)
        rig.step(at)
        rig.runner.raising = [MemoryError()]
        rig.run()
        for request in requests:
            rig.expect_output(request)
        rig.expect_nothing_left()

    @both
    def test_masks_without_memory_set_all_rows_back(self, overlap_scheduling: bool) -> None:
        rig = rig_of(overlap_scheduling=overlap_scheduling)
        rig.submit(bound("fails", range(6), 6))
        rig.submit(generate("free", range(9), max_tokens=9))
        rig.step(2)
        rig.runner.raising_late = [MemoryError()]
        rig.run()
        assert rig.link.tokens("free") == expected_output(range(9), 9)
        assert rig.failed("fails").code == "engine_failure"
        rig.expect_nothing_left()

    @both
    def test_few_slots_make_sequences_wait_and_no_token_wrong(
        self, overlap_scheduling: bool
    ) -> None:
        rig = rig_of(num_states=7, overlap_scheduling=overlap_scheduling)
        requests = [generate(str(n), range(n, n + 9), max_tokens=7) for n in range(9)]
        for request in requests:
            rig.submit(request)
        rig.run()
        for request in requests:
            rig.expect_output(request)
        rig.expect_nothing_left()


def test_without_states_a_row_names_no_slot() -> None:
    rig = Rig()
    rig.submit(generate("1", range(9)))
    rig.run()
    assert {(r.state_in, r.state_out) for step in rig.runner.steps for r in step.rows} == {(0, 0)}
