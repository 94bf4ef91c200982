"""Drafts from the cached tree come only from namespaces that the request may read. Drafting leaves
the tree unchanged.
"""

from __future__ import annotations

import pytest

from engine.drafting.tree_walk import TreeWalk, tree_walk
from engine.sequences.sequence import Sequence
from prefix_cache.namespace import NamespacePath
from tests.engine.drafting.rows import accepted, committed, give, held, row
from tests.prefix_cache.support.scene import Scene, namespace, path, tokens

PROMPT = list(range(1, 11))  # two and a half blocks of four tokens
ANSWER = list(range(100, 130))
MINE = path("mine")


@pytest.fixture
def scene() -> Scene:
    return Scene(num_blocks=256)


def earlier(scene: Scene, where: NamespacePath = MINE, answer: list[int] = ANSWER) -> None:
    """Run an earlier request with the same prompt and the answer `answer`."""
    scene.run(where, tokens(*PROMPT, *answer))


def walking(scene: Scene, sequence: Sequence) -> TreeWalk:
    """Return a walk for a sequence, with a new lease if the sequence has none."""
    if sequence.lease is None:
        held(scene, sequence)
    drafter = tree_walk(scene.cache.tree, sequence)
    assert drafter is not None
    return drafter


def proposed(drafter: TreeWalk, sequence: Sequence, most: int = 8) -> tuple[int, ...]:
    return drafter.draft(sequence.num_tokens, most)


def test_a_second_run_is_drafted_from_the_first(scene: Scene) -> None:
    earlier(scene)
    sequence = row(PROMPT)
    drafter = walking(scene, sequence)
    left, steps = list(ANSWER), 0
    give(sequence, left.pop(0))
    while left:
        draft = drafter.draft(sequence.num_tokens, 4)
        agreed = accepted(draft, left)
        assert agreed == len(draft)
        give(sequence, *left[: agreed + 1])
        del left[: agreed + 1]
        committed(scene, sequence)
        steps += 1
    assert steps <= 10, "the last, partial block is not in the tree"
    scene.cache.check_invariants()


def test_an_answer_that_departs_is_not_drafted_until_a_path_fits(scene: Scene) -> None:
    earlier(scene)
    earlier(scene, answer=[*ANSWER[:3], 7, *range(200, 220)])
    sequence = row(PROMPT)
    drafter = walking(scene, sequence)
    give(sequence, *ANSWER[:3])
    assert proposed(drafter, sequence)
    give(sequence, 7)
    committed(scene, sequence)
    assert proposed(drafter, sequence, 4) == (200, 201, 202, 203)
    give(sequence, 1)
    assert proposed(drafter, sequence) == ()


def test_the_most_used_of_several_is_followed(scene: Scene) -> None:
    for answer, times in (([50] * 6, 1), ([60] * 6, 3), ([70] * 6, 2)):
        for _ in range(times):
            scene.run(MINE, tokens(*PROMPT, *answer, 9))
    scene.run(MINE, tokens(*PROMPT, *[60] * 6, 9, 9, 9, 9, 9))
    sequence = row(PROMPT)
    drafter = walking(scene, sequence)
    assert set(proposed(drafter, sequence, 4)) == {60}
    give(sequence, 70)
    assert set(proposed(drafter, sequence, 4)) == {70}, "of those that begin as the answer does"


READABLE = [
    (path("mine"), path("mine"), True),
    (path("mine"), path("theirs"), False),
    (path("published", "mine", length=2), path("published", "mine", length=2), True),
    (path("published", "mine", length=2), path("published", "theirs", length=2), False),
    # a private prompt reads published blocks
    (path("published"), path("published", "mine", length=2), True),
    # a published prompt reads no private blocks
    (path("published", "mine", length=2), path("published"), False),
    (path("mine", "salt", length=2), path("mine"), False),
    (path("mine"), path("mine", "salt", length=2), True),
]


@pytest.mark.parametrize(("written", "read", "may_read"), READABLE)
def test_only_readable_namespaces_are_drafted_from(
    scene: Scene, written: NamespacePath, read: NamespacePath, may_read: bool
) -> None:
    earlier(scene, where=written)
    sequence = row(PROMPT, where=read)
    drafter = walking(scene, sequence)
    give(sequence, ANSWER[0])
    assert proposed(drafter, sequence, 4) == (tuple(ANSWER[1:5]) if may_read else ())


def test_another_namespace_below_the_same_node_is_passed_over(scene: Scene) -> None:
    """Follow only the child in the reader's namespace.

    Children of two namespaces are below one published node.
    """
    theirs, mine = path("published", "theirs", length=2), path("published", "mine", length=2)
    for _ in range(3):
        earlier(scene, where=theirs, answer=[66] * 20)
    sequence = row(PROMPT, where=mine)
    drafter = walking(scene, sequence)
    assert proposed(drafter, sequence) == ()
    earlier(scene, where=mine, answer=[77] * 20)
    assert set(proposed(drafter, sequence)) == {77}


ENDS = [70] * 8, [50] * 8, [60] * 8  # published continuations of the prompt


def drafted_after(scene: Scene, where: NamespacePath) -> list[int]:
    sequence = row(PROMPT[:8], where=where)
    lease = held(scene, sequence)
    found = list(proposed(walking(scene, sequence), sequence, 4))
    scene.release(lease)
    return found


@pytest.mark.parametrize("used", range(len(ENDS)))
def test_how_often_others_use_what_is_published_moves_no_draft(scene: Scene, used: int) -> None:
    """Let another tenant repeat published text: drafts stay the same.

    Positive control: the reader's own repeated answers do change its drafts.
    """
    published, mine = path("published"), path("mine")
    for end in ENDS:
        for where in (published, mine):
            scene.run(where, tokens(*PROMPT[:8], *end))
    before = [drafted_after(scene, where) for where in (published_to("mine"), mine)]
    for _ in range(3):
        scene.run(published_to("theirs", 4), tokens(*PROMPT[:8], *ENDS[used]))
        scene.run(mine, tokens(*PROMPT[:8], *ENDS[used]))
    shared, own = (drafted_after(scene, where) for where in (published_to("mine"), mine))
    assert shared == before[0] == [50] * 4, "the first by content"
    assert own == ENDS[used][:4]


def published_to(name: str, num_blocks: int = 2) -> NamespacePath:
    """Return the path of a tenant's prompt that begins with `num_blocks` published blocks."""
    return path("published", name, length=num_blocks)


def test_its_own_is_followed_before_what_is_published(scene: Scene) -> None:
    for _ in range(3):
        scene.run(path("published"), tokens(*PROMPT[:8], *ENDS[0]))
    scene.run(published_to("mine"), tokens(*PROMPT[:8], *ENDS[1]))
    assert drafted_after(scene, published_to("mine")) == [50] * 4
    assert drafted_after(scene, published_to("theirs")) == [70] * 4


def test_a_request_that_does_not_use_the_cache_gets_none(scene: Scene) -> None:
    earlier(scene)
    for uses_cache in (False, True):
        sequence = row(PROMPT)
        lease = held(scene, sequence)
        sequence.use_cache = lease.shares = uses_cache
        assert (tree_walk(scene.cache.tree, sequence) is not None) == uses_cache


def test_a_request_that_is_kept_out_of_the_cache_gets_no_more(scene: Scene) -> None:
    earlier(scene)
    sequence = row(PROMPT)
    drafter = walking(scene, sequence)
    assert proposed(drafter, sequence)
    give(sequence, 7)
    sequence.use_cache = False
    assert proposed(drafter, sequence) == ()


def test_a_sequence_without_a_lease_gets_none(scene: Scene) -> None:
    earlier(scene)
    assert tree_walk(scene.cache.tree, row(PROMPT)) is None


def test_its_own_blocks_are_no_discovery(scene: Scene) -> None:
    sequence = row(PROMPT)
    drafter = walking(scene, sequence)
    for token_id in ANSWER:
        give(sequence, token_id)
        assert proposed(drafter, sequence) == ()
        committed(scene, sequence)
        assert proposed(drafter, sequence) == ()


def test_drafting_changes_nothing_in_the_tree(scene: Scene) -> None:
    earlier(scene)
    earlier(scene, answer=[50, 51, 52, 53, 54, 55])
    sequence = row(PROMPT)
    drafter = walking(scene, sequence)
    tree = scene.cache.tree

    def state() -> list[object]:
        counted = ("last_used", "hits", "num_read", "seen", "leases", "held_children", "trims")
        nodes = sorted(tree.nodes(), key=lambda node: (node.start, node.first_key))
        marks = [[getattr(node, name) for name in counted] for node in nodes]
        return [tree.num_nodes, [node.edge.num_blocks for node in nodes], marks]

    before = state()
    give(sequence, ANSWER[0])
    assert proposed(drafter, sequence)
    give(sequence, *ANSWER[1:6])
    assert proposed(drafter, sequence)
    assert state() == before
    scene.cache.check_invariants()
    scene.run(MINE, tokens(*PROMPT, *ANSWER))
    assert state() != before, "the control: a request does"


def test_a_flush_ends_what_is_followed(scene: Scene) -> None:
    earlier(scene)
    sequence = row(PROMPT)
    drafter = walking(scene, sequence)
    give(sequence, ANSWER[0])
    assert proposed(drafter, sequence)
    scene.cache.flush(namespace=namespace("mine"))
    assert proposed(drafter, sequence) == ()
    give(sequence, ANSWER[1])
    assert proposed(drafter, sequence) == ()


def test_what_was_forgotten_further_on_is_not_drafted(scene: Scene) -> None:
    scene.run(MINE, tokens(*PROMPT, *ANSWER[:10]))
    scene.run(MINE, tokens(*PROMPT, *ANSWER), owner="another")
    sequence = row(PROMPT)
    drafter = walking(scene, sequence)
    give(sequence, *ANSWER[:2])
    assert proposed(drafter, sequence, 16) == tuple(ANSWER[2:18])
    assert scene.cache.flush(owner="another")
    assert proposed(drafter, sequence, 16) == tuple(ANSWER[2:10])


def test_what_is_evicted_is_followed_no_more() -> None:
    scene = Scene(num_blocks=24)
    earlier(scene)
    sequence = row(PROMPT)
    drafter = walking(scene, sequence)
    give(sequence, ANSWER[0])
    assert proposed(drafter, sequence, 4) == tuple(ANSWER[1:5])
    scene.run(path("theirs"), tokens(*range(300, 380)))
    assert scene.matches(MINE, tokens(*PROMPT, *ANSWER)) == 12
    assert proposed(drafter, sequence, 4) == (ANSWER[1],), "the last token of the block that stayed"


def test_a_split_of_what_is_followed_does_not_matter(scene: Scene) -> None:
    earlier(scene)
    sequence = row(PROMPT)
    drafter = walking(scene, sequence)
    give(sequence, *ANSWER[:2])
    assert proposed(drafter, sequence, 4) == tuple(ANSWER[2:6])
    before = scene.cache.tree.num_nodes
    earlier(scene, answer=[*ANSWER[:10], 5, 5, 5, 5, 5])
    assert scene.cache.tree.num_nodes > before
    give(sequence, ANSWER[2])
    assert proposed(drafter, sequence, 4) == tuple(ANSWER[3:7])


def test_what_another_sequence_has_just_written_is_found(scene: Scene) -> None:
    """Draft from a token sequence that another choice of the same request has just committed."""
    first, second = row(PROMPT), row(PROMPT)
    held(scene, first)
    drafter = walking(scene, second)
    give(second, *ANSWER[:2])
    assert proposed(drafter, second) == ()
    give(first, *ANSWER[:12])
    committed(scene, first)
    assert proposed(drafter, second, 4) == tuple(ANSWER[2:6])
