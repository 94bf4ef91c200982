"""Drafts come from the source that is right most often, and only where they pay."""

from __future__ import annotations

import random
from collections.abc import Sequence as Ordered

import numpy as np
import pytest

from engine.drafting.acceptance import LONGEST_MATCH, MOST_DRAFTS
from engine.drafting.composition import choose_drafts
from engine.drafting.draft import DraftSource
from engine.drafting.drafting import LONGEST_REST, PATIENCE, ChosenDrafts
from engine.drafting.lengths import Payoff
from engine.sequences.sequence import Sequence
from prefix_cache.leases.lease_states import LeaseStates, StateAt
from prefix_cache.tree.tree import RadixTree
from tests.engine.drafting.rows import accepted, give, held, row
from tests.prefix_cache.support.scene import Scene, path, tokens

FILE = list(range(100, 400))


def flat(rows: int) -> float:
    """Return a step time that does not depend on the number of rows."""
    return 0.01


def steep(rows: int) -> float:
    """Return a step time proportional to the number of rows, as in a large batch of a mixture of
    experts.
    """
    return 0.001 * rows


class Oracle:
    """A drafter that knows the answer, but drafts each token wrong with probability `lies`."""

    def __init__(self, answer: Ordered[int], lies: float, source: DraftSource = "own") -> None:
        self._answer, self._lies, self._source = answer, lies, source
        self.matched = 3
        self._random = random.Random(1)
        self.asked = 0

    @property
    def source(self) -> DraftSource:
        return self._source

    def begin(self, sequence: Sequence) -> Oracle:
        self._prompt_len = sequence.prompt_len
        return self

    def draft(self, known: int, most: int) -> tuple[int, ...]:
        self.asked += 1
        at = known - self._prompt_len
        return tuple(
            -5 if self._random.random() < self._lies else token
            for token in self._answer[at : at + most]
        )


class Silent:
    """A drafter that never drafts, and counts how often it is asked."""

    source: DraftSource = "own"
    matched = 0

    def __init__(self) -> None:
        self.asked = 0

    def begin(self, sequence: Sequence) -> Silent:
        return self

    def draft(self, known: int, most: int) -> tuple[int, ...]:
        self.asked += 1
        return ()


def play(
    drafting: ChosenDrafts, sequence: Sequence, answer: Ordered[int], *, is_prepared: bool = False
) -> tuple[list[int], int]:
    """Decode an answer; return the length of each draft and the number of accepted tokens."""
    lengths, right = list[int](), 0
    while sequence.num_output < len(answer):
        left = answer[sequence.num_output :]
        draft = drafting.propose([sequence]).get(sequence)
        if is_prepared:
            drafting.prepare(sequence)
        agreed = 0 if draft is None else accepted(draft.token_ids, left[:-1])
        lengths.append(len(draft.token_ids) if draft else 0)
        right += agreed
        give(sequence, *left[: agreed + 1])
    return lengths, right


def test_a_perfect_source_is_drafted_at_full_length() -> None:
    answer = list(range(400))
    drafting = ChosenDrafts([Oracle(answer, 0.0).begin], Payoff(flat))
    lengths, right = play(drafting, row([1], 500), answer)
    assert max(lengths) == MOST_DRAFTS
    assert len(lengths) < 32
    assert right == len(answer) - len(lengths)


def test_a_source_that_lies_is_drafted_less_and_then_not_at_all() -> None:
    answer = list(range(400))
    means = []
    for lies in (0.1, 0.4, 1.0):
        drafting = ChosenDrafts(
            [Oracle(answer, lies).begin], Payoff(lambda rows: 0.01 + 0.001 * rows)
        )
        lengths, _ = play(drafting, row([1], 500), answer)
        means.append(float(np.mean(lengths)))
    assert means[0] > means[1] > means[2]
    assert means[2] < 0.1


def test_a_source_that_was_wrong_is_drafted_again_once_it_is_right() -> None:
    """Judge a source by the tokens that it would have drafted, even when no step verified them."""
    wrong, right = list(range(1000, 1060)), list(range(60, 400))
    drafting = ChosenDrafts([Oracle(list(range(400)), 0.0).begin], Payoff(flat))
    lengths, _ = play(drafting, row([1], 500), [*wrong, *right])
    assert sum(lengths[20:60]) < 20, "a tenth of full drafts"
    assert max(lengths) == MOST_DRAFTS


def test_nothing_is_drafted_where_it_does_not_pay() -> None:
    answer = list(range(100))
    for seconds, is_paid in ((steep, False), (flat, True)):
        drafting, sequence = (
            ChosenDrafts([Oracle(answer, 0.0).begin], Payoff(seconds)),
            row([1], 200),
        )
        assert drafting.is_worth_waiting([sequence]) == is_paid
        assert bool(drafting.propose([sequence])) == is_paid


def test_the_host_time_of_a_step_that_waits_counts() -> None:
    answer = list(range(100))
    for host, is_paid in ((0.2, False), (0.001, True)):
        payoff = Payoff(flat, lambda host=host: host)  # type: ignore[misc]
        sequence = row([1], 200)
        assert (
            ChosenDrafts([Oracle(answer, 0.0).begin], payoff).is_worth_waiting([sequence])
            == is_paid
        )


def test_a_step_after_one_with_drafts_waits_without_another_look() -> None:
    oracle, sequence = Oracle(list(range(100)), 0.0), row([1], 200)
    drafting = ChosenDrafts([oracle.begin], Payoff(flat))
    assert drafting.propose([sequence])
    give(sequence, *[7] * 40)
    asked = oracle.asked
    assert drafting.is_worth_waiting([sequence])
    assert oracle.asked == asked
    drafting.is_worth_waiting([sequence])
    assert oracle.asked == asked + 1, "unless no step was decided meanwhile"


def test_drafts_of_pending_tokens_count_only_beyond_them() -> None:
    answer = list(range(3))
    for pending, is_worth in ((0, True), (1, True), (3, False)):
        drafting, sequence = ChosenDrafts([Oracle(answer, 0.0).begin], Payoff(flat)), row([1], 200)
        sequence.num_pending = pending
        assert drafting.is_worth_waiting([sequence]) == is_worth


def test_a_row_without_guesses_is_looked_at_less_often() -> None:
    silent, sequence = Silent(), row([1], 2000)
    drafting = ChosenDrafts([silent.begin], Payoff(flat))
    for token_id in range(1000):
        assert drafting.propose([sequence]) == {}
        give(sequence, token_id)
    assert silent.asked < PATIENCE + 2 * 1000 / LONGEST_REST
    often, other = Oracle(list(range(1000)), 0.0), row([1], 2000)
    drafting = ChosenDrafts([often.begin], Payoff(steep))
    for token_id in range(1000):
        assert drafting.propose([other]) == {}, "it does not pay"
        give(other, token_id)
    assert often.asked == 1000, "the control: its guesses are right"


def test_a_row_that_rests_is_looked_at_again_in_time() -> None:
    sequence = row([*FILE, 1], 500)
    drafting = choose_drafts(RadixTree(4), flat)
    answer = [*range(1000, 1100), *FILE]
    lengths, right = play(drafting, sequence, answer)
    assert sum(lengths[:100]) == 0
    assert right > len(FILE) * 0.8


def test_the_better_of_two_sources_is_followed() -> None:
    answer = list(range(300))
    liar, honest = Oracle(answer, 1.0, "prediction"), Oracle(answer, 0.0, "own")
    _, right = play(ChosenDrafts([liar.begin, honest.begin], Payoff(flat)), row([1], 400), answer)
    assert right > 0.8 * len(answer)
    assert honest.asked > 0
    honest.asked = 0
    good = Oracle(answer, 0.0, "prediction")
    play(ChosenDrafts([good.begin, honest.begin], Payoff(flat)), row([1], 400), answer)
    assert not honest.asked, "the first one is good enough"


def test_no_draft_is_longer_than_the_room_for_tokens() -> None:
    answer = list(range(100))
    for room, length in ((1, 0), (2, 1), (5, 4)):
        sequence = row([1], room)
        drafts = ChosenDrafts([Oracle(answer, 0.0).begin], Payoff(flat)).propose([sequence])
        assert sum(len(draft.token_ids) for draft in drafts.values()) == length


def test_no_draft_is_longer_than_its_row_may_be_with_a_recurrent_state() -> None:
    sequence, lengths = row(range(20), 200), []
    lease = held(Scene(num_blocks=64), sequence)
    sequence.num_computed = 19
    for states in (None, LeaseStates(StateAt(16, 1), StateAt(16, 1), [1], 0, block_size=16)):
        lease.states = states
        oracle = Oracle(range(200), 0.0, "grammar")
        oracle.matched = LONGEST_MATCH
        drafts = ChosenDrafts([oracle.begin], Payoff(flat)).propose([sequence])
        lengths.append(len(drafts[sequence].token_ids))
    assert lengths == [MOST_DRAFTS, 47 - 20], "a row may pass one block's end but not two"


def test_rows_learn_nothing_of_each_other() -> None:
    answer = list(range(300))
    drafting = ChosenDrafts([Oracle(answer, 0.0).begin], Payoff(lambda rows: 0.01 + 0.002 * rows))
    alone = drafting.propose([row([1], 400)])
    play(drafting, row([1], 400), [-1] * 300)  # drafts for this row are always wrong
    play(drafting, row([1], 400), answer)  # drafts for this row are always right
    assert list(drafting.propose([row([1], 400)]).values()) == list(alone.values())


def test_an_ended_row_is_forgotten() -> None:
    answer = list(range(30))
    drafting, sequence = ChosenDrafts([Oracle(answer, 0.0).begin], Payoff(flat)), row([1], 400)
    assert drafting.propose([sequence])
    assert drafting._rows
    drafting.ended(sequence)
    drafting.ended(sequence)
    assert not drafting._rows


def test_all_sources_together() -> None:
    """Ask the prediction first, then the tree, then the sequence's own text."""
    scene = Scene(num_blocks=256)
    scene.run(path("mine"), tokens(*FILE[:10], *range(600, 640)))
    drafting = choose_drafts(scene.cache.tree, flat)
    sequence = row(FILE[:10], 400, prediction=range(500, 510))
    held(scene, sequence)
    give(sequence, 500)
    draft = drafting.propose([sequence])[sequence]
    assert draft[:2] == (tuple(range(501, 510)), "prediction")
    other = row(FILE[:10], 400)
    held(scene, other)
    give(other, 600, 601)
    assert drafting.propose([other])[other].source == "tree"
    give(other, 1, *FILE[2:5])
    draft = drafting.propose([other])[other]
    assert draft.source == "own"
    assert draft.token_ids[:8] == (*FILE[5:10], 600, 601, 1)


@pytest.mark.parametrize("seed", range(8))
def test_drafts_are_the_same_if_they_are_prepared(seed: int) -> None:
    """Compare drafts after preparation, when the prompt is known and after each step, with
    unprepared drafts.
    """
    generator = random.Random(seed)
    prompt = [generator.randrange(4) for _ in range(generator.choice([1, 30, 300]))]
    answer = [generator.randrange(4) for _ in range(60)]
    answer += prompt[:40] + answer[:20] + prompt[:200]
    prediction = generator.choice([None, answer[30:150]])
    found = list[tuple[list[int], int]]()
    for is_prepared in (True, False):
        drafting = choose_drafts(RadixTree(4), flat)
        sequence = row(prompt, 400, prediction=prediction)
        if is_prepared:
            drafting.prepare(sequence)
            drafting.prepare(sequence)
            assert sequence in drafting._rows
        give(sequence, *answer[: seed % 3])
        found.append(play(drafting, sequence, answer, is_prepared=is_prepared))
    assert found[0] == found[1]
    assert found[0][1] > 5


@pytest.mark.parametrize("seed", range(10))
def test_many_rows_at_random(seed: int) -> None:
    """Add random sequences, repeat their text, and remove them: drafts hold known tokens, and fit
    the batch.
    """
    generator = random.Random(seed)
    drafting = choose_drafts(RadixTree(4), lambda rows: 0.01 + 0.0001 * rows)
    rows = list[Sequence]()
    for _ in range(300):
        if len(rows) < 8:
            prompt = [generator.randrange(5) for _ in range(generator.randrange(1, 60))]
            rows.append(row(prompt, generator.randrange(1, 50)))
        drafting.is_worth_waiting(rows)
        drafts = drafting.propose(rows)
        for one in rows:
            drafting.prepare(one)
        assert set(drafts) <= set(rows)
        for one in list(rows):
            draft = drafts.get(one)
            room = len(one.tokens) - one.num_tokens
            if draft is not None:
                assert 0 < len(draft.token_ids) < room
                assert set(draft.token_ids) <= set(one.token_ids.tolist())
            follows = draft.token_ids[: generator.randrange(4)] if draft else ()
            give(one, *follows, generator.randrange(5))
            if one.num_tokens == len(one.tokens) or not generator.randrange(30):
                rows.remove(one)
                drafting.ended(one)
    assert set(drafting._rows) <= set(rows)
