"""Structural tags as grammars: what each part of the tree accepts, and what is no tag."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import msgspec
import pytest

from gateway.turn_formats.structural_tag import StructuralTag
from tests.gateway.turn_formats.grammars import Bytes

NUMBER = {"type": "json_schema", "json_schema": {"type": "integer"}}
TAG = {"type": "tag", "begin": "<n>", "content": NUMBER, "end": "</n>"}
OTHER = {"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "</t>"}
ALWAYS = {"at_least_one": True}
ONCE = {"stop_after_first": True}


def tags(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "tags": [TAG, OTHER], **more}


TRIGGERED = tags("triggered_tags", triggers=["<n", "<t>"])
SEPARATED = tags("tags_with_separator", separator=", ")
OLD = {"structures": [{"begin": "<n>", "schema": {"type": "integer"}, "end": "</n>"}]}
# A tree, what is of it, and what is not.
TREES: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "text": ({"type": "const_string", "value": 'a"'}, ['a"'], ["a", ""]),
    "number": (NUMBER, ["12"], ["x"]),
    "any": ({"type": "any_text"}, ["", "a\nb"], []),
    "sequence": ({"type": "sequence", "elements": [TAG, TAG]}, ["<n>1</n><n>2</n>"], ["<n>1</n>"]),
    "or": ({"type": "or", "elements": [NUMBER, OTHER]}, ["1", "<t>é</t>"], ["<t>", "<n>1</n>"]),
    "tag": (TAG, ["<n>-1</n>"], ["<n>x</n>", "1"]),
    "triggered": (
        TRIGGERED,
        ["", "say", "a <n>1</n> b", "<t>x</t><n>2</n>"],
        ["<n>x</n>", "a <n", "<nx>"],
    ),
    "one at least": (TRIGGERED | ALWAYS, ["<n>1</n>", "a<t>b</t>c"], ["", "abc"]),
    "the first ends it": (TRIGGERED | ALWAYS | ONCE, ["a<n>1</n>"], ["<n>1</n>x", "a"]),
    "at most one": (TRIGGERED | ONCE, ["a<n>1</n>", "a"], ["<n>1</n>x"]),
    "separated": (SEPARATED, ["", "<n>1</n>", "<n>1</n>, <t>a</t>"], ["<n>1</n><n>1</n>", "a"]),
    "some separated": (SEPARATED | ALWAYS, ["<n>1</n>, <n>2</n>"], [""]),
    "one separated": (SEPARATED | ONCE, ["", "<n>1</n>"], ["<n>1</n>, <n>2</n>"]),
}


@pytest.fixture(scope="module")
def llguidance() -> ModuleType:
    return pytest.importorskip("llguidance")  # type: ignore[no-any-return]


@pytest.mark.parametrize("special", [(), ("<n>", "</n>")], ids=["characters", "tokens"])
@pytest.mark.parametrize("case", TREES)
def test_a_tree(llguidance: ModuleType, case: str, special: tuple[str, ...]) -> None:
    tree, good, bad = TREES[case]
    if special and "<n" in tree.get("triggers", ()):
        tree = tree | {"triggers": ["<n>", "<t>"]}  # a token has no beginning
        bad = [text for text in bad if "<n" not in text.replace("<n>", "")]
    vocabulary = Bytes(llguidance, special)
    tag = msgspec.convert({"format": tree}, StructuralTag)
    assert tag.problem() is None
    grammar = tag.lark(vocabulary.special_tokens)
    assert [text for text in good if not vocabulary.accepts(grammar, text)] == []
    assert [text for text in bad if vocabulary.accepts(grammar, text)] == []


def test_the_older_spelling(llguidance: ModuleType) -> None:
    vocabulary = Bytes(llguidance)
    grammar = msgspec.convert(OLD | {"triggers": ["<n"]}, StructuralTag).lark({})
    assert vocabulary.accepts(grammar, "a<n>1</n>b")
    assert not vocabulary.accepts(grammar, "a<n>x</n>b")


@pytest.mark.parametrize(
    "asked",
    [
        {},
        OLD,
        OLD | {"triggers": ["", "x"]},
        {"format": {"type": "or", "elements": []}},
        {"format": OTHER | {"end": ""}},
        {"format": {"type": "sequence", "elements": [OTHER | {"end": ""}]}},
        {"format": tags("triggered_tags", triggers=["<n>"])},
    ],
)
def test_what_cannot_be_followed_says_why(asked: dict[str, Any]) -> None:
    assert msgspec.convert(asked, StructuralTag).problem()


@pytest.mark.parametrize("unknown", [{"type": "table"}, {"type": "any_text", "excludes": ["a"]}])
def test_what_is_not_known_is_refused(unknown: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"format": unknown}, StructuralTag)
