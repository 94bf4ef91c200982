from __future__ import annotations

import pytest

from engine.link.view_messages import Prefixes, PrefixesQuery, PrefixOrder, TreeLevel, TreeQuery
from engine.queries import tree_views
from tests.engine.rigs.rig import CLIENT, NAMESPACE, OTHER, Rig, generate


def two_namespaces() -> Rig:
    """Cache three prompts that share 4 blocks in one namespace, and one prompt in another."""
    rig = Rig(num_blocks=128)
    for n in range(3):
        rig.submit(generate(f"r{n}", [*range(1, 17), *range(20 + n, 28 + n)], flow="a"))
        rig.run()
    rig.submit(generate("other", range(1, 17), flow="b", namespace=OTHER))
    rig.run()
    return rig


def level(rig: Rig, node: str | None = None, limit: int = 200) -> TreeLevel:
    rig.link.say(TreeQuery(query_id="q", node=node, limit=limit))
    rig.step()
    return next(one for one in reversed(rig.link.sent[CLIENT]) if isinstance(one, TreeLevel))


def prefixes(rig: Rig, order: PrefixOrder, limit: int = 50) -> Prefixes:
    rig.link.say(PrefixesQuery(query_id="q", order=order, limit=limit))
    rig.step()
    return next(one for one in reversed(rig.link.sent[CLIENT]) if isinstance(one, Prefixes))


def test_the_root_has_the_namespaces_the_largest_first() -> None:
    first, second = level(two_namespaces()).children
    assert (first.namespace, first.flow, first.parent) == (NAMESPACE, "a", None)
    assert (second.namespace, second.flow) == (OTHER, "b")
    assert first.device > second.device > 0
    assert (first.host, first.disk) == (0, 0)
    assert (first.hits, second.hits) == (2, 0)


def test_a_namespace_has_its_first_nodes_and_a_node_what_builds_on_it() -> None:
    rig = two_namespaces()
    namespace = level(rig).children[0]
    below = level(rig, namespace.node)
    assert below.node is not None
    assert below.node.node == namespace.node
    (top,) = below.children
    assert (top.parent, top.tokens_before, top.tokens) == (namespace.node, 0, 16)
    leaves = level(rig, top.node).children
    assert len(leaves) == top.children == 3
    assert {leaf.parent for leaf in leaves} == {top.node}
    assert {leaf.tokens_before for leaf in leaves} == {16}
    assert namespace.tokens == top.tokens + sum(leaf.tokens for leaf in leaves)


def test_of_many_children_the_largest_are_listed() -> None:
    rig = two_namespaces()
    (top,) = level(rig, level(rig).children[0].node).children
    told = level(rig, top.node, limit=1)
    assert (len(told.children), told.more) == (1, 2)
    assert level(rig, limit=1).more == 1


def test_a_node_that_left_is_unknown() -> None:
    rig = two_namespaces()
    name = level(rig).children[1].node
    assert level(rig, name).is_known
    rig.core.components.cache.flush(owner="b")
    assert not level(rig, name).is_known


def test_the_hottest_prefix_is_the_one_in_common() -> None:
    told = prefixes(two_namespaces(), "hot")
    assert (told.prefixes[0].tokens, told.prefixes[0].hits) == (16, 2)
    assert told.surveyed == told.nodes == 5
    assert told.age_s is not None


def test_a_large_tree_is_surveyed_between_steps_while_somebody_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = two_namespaces()
    monkeypatch.setattr(tree_views, "AT_ONCE", 2)
    monkeypatch.setattr(tree_views, "SLICE", 2)
    rig.step()
    views = rig.core.queries.tree_views
    assert not views.is_surveying
    first = prefixes(rig, "hot")
    assert (first.surveyed, first.age_s) == (0, None)
    for _ in range(5):
        rig.clock.now += 1.0
        rig.step()
    assert not views.is_surveying
    later = prefixes(rig, "hot")
    assert later.surveyed == later.nodes == 5
    assert later.age_s is not None
    assert not views.is_surveying  # the survey is too recent for a new one
    rig.clock.now += tree_views.RENEW_S
    prefixes(rig, "hot")
    assert views.is_surveying


def test_slices_keep_their_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = two_namespaces()
    monkeypatch.setattr(tree_views, "AT_ONCE", 2)
    monkeypatch.setattr(tree_views, "SLICE", 2)
    prefixes(rig, "hot")
    survey = rig.core.components.cache.survey
    for _ in range(9):
        rig.core.queries.tree_views.advance()  # the clock does not move
    assert survey.known.nodes == 2


def test_stats_have_the_depth() -> None:
    rig = two_namespaces()
    assert rig.core.stats().tree_depth == rig.core.components.cache.tree.depth == 2
