"""Drafts from earlier answers to other prompts: their sources, and how long they are kept."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from engine.drafting.answers import EarlierAnswers
from engine.sequences.sequence import Sequence
from prefix_cache.namespace import NamespacePath
from tests.doubles.engine.drafting.pooled_answers import PooledAnswers
from tests.engine.drafting.rows import committed, decode, give, held, row
from tests.prefix_cache.support.scene import Scene, namespace, path, tokens

PROMPT, OTHER = list(range(1, 11)), list(range(30, 43))
ANSWER = list(range(100, 130))
MINE = path("mine")


@pytest.fixture
def scene() -> Scene:
    return Scene(num_blocks=256)


@pytest.fixture
def answers(scene: Scene) -> EarlierAnswers:
    return EarlierAnswers(scene.cache.tree)


def answered(
    scene: Scene,
    answers: EarlierAnswers,
    where: NamespacePath = MINE,
    owner: str = "a",
    uses_cache: bool = True,
) -> None:
    """Run a request that gets `ANSWER` and ends."""
    sequence = row(PROMPT, where=where)
    lease = scene.must_acquire(where, sequence.token_ids.copy(), owner=owner)
    lease.shares = sequence.use_cache = uses_cache
    sequence.hold(lease, 1)
    give(sequence, *ANSWER)
    committed(scene, sequence)
    answers.keep(sequence)
    scene.cache.release(lease, now=scene.tick())


def begun(scene: Scene, where: NamespacePath = MINE) -> Sequence:
    """Start a request with another prompt and the same beginning of the answer."""
    sequence = row(OTHER, where=where)
    held(scene, sequence)
    give(sequence, 7, *ANSWER[3:8])
    return sequence


def drafted(answers: EarlierAnswers, sequence: Sequence, most: int = 4) -> tuple[int, ...]:
    drafter = answers.begin(sequence)
    return drafter.draft(sequence.num_tokens, most) if drafter else ()


def test_an_answer_is_drafted_for_another_prompt(scene: Scene, answers: EarlierAnswers) -> None:
    sequence = begun(scene)
    assert drafted(answers, sequence) == ()
    answered(scene, answers)
    assert drafted(answers, sequence) == tuple(ANSWER[8:12])
    give(sequence, *ANSWER[8:28])
    assert drafted(answers, sequence, 8) == tuple(ANSWER[28:]), "to its end, and no further"


def test_a_whole_answer_is_followed(scene: Scene, answers: EarlierAnswers) -> None:
    answered(scene, answers)
    sequence = row(OTHER)
    held(scene, sequence)
    drafter = answers.begin(sequence)
    assert drafter is not None
    steps, drafted_tokens, right = decode(drafter, sequence, [7, *ANSWER, 8])
    assert steps < 10
    assert right == drafted_tokens


READABLE = [
    (path("mine"), path("mine"), True),
    (path("mine"), path("theirs"), False),
    (path("published", "mine", length=2), path("published", "mine", length=2), True),
    (path("published", "mine", length=2), path("mine"), True),
    (path("published", "mine", length=2), path("published", "theirs", length=2), False),
    (path("mine", "salt", length=2), path("mine"), False),
    (path("mine"), path("mine", "salt", length=2), False),
]


@pytest.mark.parametrize(("written", "read", "may_read"), READABLE)
def test_answers_are_of_the_namespace_that_the_request_writes_in(
    scene: Scene,
    answers: EarlierAnswers,
    written: NamespacePath,
    read: NamespacePath,
    may_read: bool,
) -> None:
    answered(scene, answers, written)
    assert bool(drafted(answers, begun(scene, read))) == may_read


def test_a_pool_of_all_namespaces_would_be_seen(scene: Scene) -> None:
    """Positive control of the tests above and of `verify-isolation`: a pool shared by namespaces
    leaks a draft.
    """
    answers = PooledAnswers(scene.cache.tree)
    answered(scene, answers, path("theirs"))
    assert drafted(answers, begun(scene))


def flush_all(scene: Scene) -> None:
    scene.cache.flush()


def flush_namespace(scene: Scene) -> None:
    scene.cache.flush(namespace=namespace("mine"))


def erase_owner(scene: Scene) -> None:
    scene.cache.flush(owner="a")


def leave_group(scene: Scene) -> None:
    scene.cache.flush(namespace=namespace("mine"), owner="a")


def evict(scene: Scene) -> None:
    scene.run(path("theirs"), tokens(*range(2000, 2000 + 4 * 256)))


def evict_its_end(scene: Scene) -> None:
    scene.run(path("theirs"), tokens(*range(2000, 2000 + 4 * 250)))
    assert 0 < scene.matches(MINE, tokens(*PROMPT, *ANSWER)) < 36


ENDS = [flush_all, flush_namespace, erase_owner, leave_group, evict, evict_its_end]


@pytest.mark.parametrize("end", ENDS)
def test_an_answer_goes_when_its_end_leaves_the_tree(
    scene: Scene, answers: EarlierAnswers, end: Callable[[Scene], None]
) -> None:
    answered(scene, answers)
    [text] = answers._texts.values()
    end(scene)
    assert not answers._texts
    assert not np.isin(text.index.text, ANSWER).any(), "not a token is left"
    assert drafted(answers, begun(scene)) == ()
    answered(scene, answers)
    assert drafted(answers, begun(scene)), "the control: it comes back with its blocks"


def test_what_others_lose_does_not_matter(scene: Scene, answers: EarlierAnswers) -> None:
    answered(scene, answers)
    answered(scene, answers, path("theirs"), owner="b")
    scene.cache.flush(owner="b")
    assert drafted(answers, begun(scene))


def test_a_draft_under_way_ends_with_its_answer(scene: Scene, answers: EarlierAnswers) -> None:
    answered(scene, answers)
    sequence = begun(scene)
    drafter = answers.begin(sequence)
    assert drafter is not None
    assert drafter.draft(sequence.num_tokens, 4)
    scene.cache.flush(owner="a")
    assert drafter.draft(sequence.num_tokens, 4) == ()
    answered(scene, answers)
    assert drafter.draft(sequence.num_tokens, 4) == tuple(ANSWER[8:12])
    sequence.use_cache = False
    assert drafter.draft(sequence.num_tokens, 4) == ()


def test_a_request_outside_the_cache_leaves_and_gets_nothing(
    scene: Scene, answers: EarlierAnswers
) -> None:
    answered(scene, answers, uses_cache=False)
    assert not answers._texts
    answered(scene, answers)
    sequence = begun(scene)
    assert drafted(answers, sequence)
    sequence.use_cache = False
    assert answers.begin(sequence) is None
    assert answers.begin(row(OTHER)) is None, "nor one without a lease"
    answers.keep(row(OTHER))


def test_what_was_flushed_while_it_ran_is_not_kept(scene: Scene, answers: EarlierAnswers) -> None:
    for is_flushed in (True, False):
        sequence = row(PROMPT)
        lease = held(scene, sequence)
        give(sequence, *ANSWER)
        committed(scene, sequence)
        if is_flushed:
            scene.cache.flush(owner=lease.owner)
        answers.keep(sequence)
        assert bool(answers._texts) != is_flushed


def test_reading_changes_nothing_in_the_tree(scene: Scene, answers: EarlierAnswers) -> None:
    answered(scene, answers)
    sequence, tree = begun(scene), scene.cache.tree

    def state() -> list[object]:
        nodes = sorted(tree.nodes(), key=lambda node: (node.start, node.first_key))
        return [(one.last_used, one.hits, one.leases, one.num_read, one.trims) for one in nodes]

    before = state()
    assert drafted(answers, sequence)
    assert state() == before
    scene.cache.check_invariants()
    held(scene, row([*PROMPT, *ANSWER]))
    assert state() != before, "the control: a request does"
