"""The text of a namespace's answers finds them by their tokens, in a bounded memory."""

from __future__ import annotations

import numpy as np
import pytest

from engine.drafting import answer_text
from engine.drafting.answer_text import ERASED, AnswerText
from prefix_cache.namespace import Namespace
from prefix_cache.tree.edge import Edge
from prefix_cache.tree.node import Node
from tests.prefix_cache.support.scene import tokens


def node_of(blocks: int) -> Node:
    """Make a node of `blocks` one-token blocks."""
    ids = np.zeros(blocks, np.int32)
    return Node(Namespace(b"n" * 16), Edge(ids, ids, bytes(16 * blocks), 1), "mine", 0, None, 0.0)


def found(text: AnswerText, *last: int) -> list[int]:
    """Search the text for these tokens; return the tokens after them, up to the text's end or an
    erased token.
    """
    match = text.index.find(tokens(*last).data, len(last))
    if match is None:
        return []
    rest: list[int] = text.index.text[match[0] :].tolist()
    return rest[: rest.index(ERASED)] if ERASED in rest else rest


def test_answers_are_found_by_their_tokens_and_end_apart() -> None:
    text = AnswerText()
    text.add(tokens(1, 2, 3, 4), node_of(4), 4)
    text.add(tokens(5, 6, 7), node_of(3), 3)
    assert found(text, 1, 2) == [3, 4]
    assert found(text, 9, 5, 6) == [7]
    assert found(text, 3, 4) == []
    match = text.index.find(tokens(4, 5).data, 2)
    assert match is not None
    assert match[1] == 1, "no match reaches from one answer into the next"


def test_an_answer_is_there_once() -> None:
    text, node = AnswerText(), node_of(4)
    for _ in range(3):
        text.add(tokens(1, 2, 3, 4), node, 4)
    assert np.count_nonzero(text.index.text == 1) == 1
    text.add(tokens(1, 2, 3), node, 3)
    assert np.count_nonzero(text.index.text == 1) == 2, "the control: another end"


def test_an_answer_goes_with_its_last_block() -> None:
    text, node = AnswerText(), node_of(8)
    text.add(tokens(1, 2, 3), node, 5)
    text.add(tokens(4, 5, 6), node, 8)
    node.edge.trim(2)
    text.forget(node)
    assert found(text, 4, 5) == []
    assert not np.isin(text.index.text, [4, 5, 6]).any(), "not a token is left"
    assert found(text, 1, 2) == [3]
    node.attached = False
    text.forget(node)
    assert text.is_empty
    assert (text.index.text == ERASED).all()
    text.forget(node)


def test_a_full_text_keeps_the_latest_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_text, "MOST_TOKENS", 1024)
    text, nodes = AnswerText(), [node_of(1) for _ in range(100)]
    for number, node in enumerate(nodes):
        text.add(np.arange(100 * number, 100 * number + 50, dtype=np.int32), node, 1)
        assert len(text.index.text) <= 1024
        assert found(text, 100 * number, 100 * number + 1), "the latest is there"
    assert found(text, 9400, 9401)
    assert not found(text, 0, 1)
    for node in nodes:
        node.attached = False
        text.forget(node)
    assert text.is_empty


def test_of_an_answer_longer_than_the_text_its_end_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_text, "MOST_TOKENS", 512)
    text = AnswerText()
    text.add(np.arange(5000, dtype=np.int32), node_of(1), 1)
    assert found(text, 4900, 4901)
    assert not found(text, 4000, 4001)


def test_erased_answers_make_room_first() -> None:
    text, kept = AnswerText(), node_of(1)
    text.add(tokens(7, 8, 9), kept, 1)
    for number in range(2000):
        node = node_of(1)
        text.add(np.full(50, 100 + number, np.int32), node, 1)
        node.attached = False
        text.forget(node)
    assert found(text, 7, 8) == [9], "answers that are cached stay"
    assert len(text.index.text) < 1024


def test_a_text_takes_a_bounded_memory() -> None:
    text = AnswerText()
    for number in range(40):
        text.add(np.full(5000, number, np.int32), node_of(1), 1)
    index = text.index
    size = index.text.nbytes + index._arrays.nbytes
    assert 0.5e6 < size < 1.3 * (1 << 20)
