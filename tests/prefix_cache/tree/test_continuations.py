"""Continuations of a prefix: each is the rest of a text that the same namespace put into the tree.

A prefix has no continuation if no longer text of its namespace begins with it.
"""

from __future__ import annotations

import random

from prefix_cache.tree.continuations import continuation
from prefix_cache.tree.node import FEW, Children
from tests.prefix_cache.support.scene import Scene, namespace, path, tokens

MINE = path("mine")


def after(scene: Scene, *ids: int, most: int = 100, name: str = "mine") -> list[int]:
    tree = scene.cache.tree
    found = continuation(tree, path(name), tokens(*ids), tree.root, most)
    return [] if found is None else found[0].tolist()


def test_it_goes_on_within_a_block_an_edge_and_children() -> None:
    scene = Scene(64)
    scene.run(MINE, tokens(*range(20)))
    scene.run(MINE, tokens(*range(8), *range(100, 108)))
    for known in range(1, 20):
        assert after(scene, *range(known))[:1] in ([known], [100])
    assert after(scene, *range(9)) == list(range(9, 20))
    assert after(scene, *range(8), 100) == list(range(101, 108))
    assert after(scene, *range(9), most=3) == [9, 10, 11]
    assert after(scene, *range(20)) == []
    assert after(scene, 5) == after(scene, *range(9), 5) == []


def test_a_random_tree_is_followed_by_its_own_texts_alone() -> None:
    generator = random.Random(5)
    scene, texts = Scene(4096), dict[str, list[list[int]]]()
    for _ in range(150):
        name = generator.choice(["mine", "theirs"])
        text = [generator.randrange(3) for _ in range(generator.randrange(4, 40))]
        texts.setdefault(name, []).append(text[: len(text) // 4 * 4])
        scene.run(path(name), tokens(*text))
    for _ in range(400):
        name = generator.choice(["mine", "theirs"])
        known = [generator.randrange(3) for _ in range(generator.randrange(0, 9))]
        found = after(scene, *known, most=generator.randrange(1, 20), name=name)
        longer = [
            one for one in texts[name] if len(one) > len(known) and one[: len(known)] == known
        ]
        assert bool(found) == bool(longer)
        whole = [*known, *found]
        assert not found or any(one[: len(whole)] == whole for one in longer)


def test_children_by_how_their_key_begins() -> None:
    for count in (FEW, 5 * FEW):
        scene, children = Scene(1024), Children()
        for token_id in range(count):
            scene.run(MINE, tokens(token_id % 3, token_id, 0, 0))
        for node in scene.cache.tree.root.children.values():
            children.put(node.first_key, node)
        for token_id in range(4):
            start = namespace("mine") + tokens(token_id).tobytes()
            found = {node.first_key for node in children.beginning(start)}
            assert found == {key for key in children if key.startswith(start)}
            assert bool(found) == (token_id < 3)
