"""Structural tags as grammars: the texts that each kind of tag accepts, and invalid tags."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import msgspec
import pytest

from engine.link.messages import Grammar
from gateway.turn_formats.structural_parts import JsonSchema, Regex, Sequence_
from gateway.turn_formats.structural_tag import MAX_PARTS, StructuralTag
from tests.gateway.turn_formats.grammars import Bytes

NUMBER = {"type": "json_schema", "json_schema": {"type": "integer"}}
TAG = {"type": "tag", "begin": "<n>", "content": NUMBER, "end": "</n>"}
OTHER = {"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "</t>"}
ALWAYS = {"at_least_one": True}
ONCE = {"stop_after_first": True}


def tags(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "tags": [TAG, OTHER], **more}


TRIGGERED = tags("triggered_tags", triggers=["<n", "<t>"])
WHOLE = TRIGGERED | {"triggers": ["<n>", "<t>"]}
SEPARATED = tags("tags_with_separator", separator=", ")
OLD = {"structures": [{"begin": "<n>", "schema": {"type": "integer"}, "end": "</n>"}]}
# For each: a tree of tags, valid texts, and invalid texts.
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
    "one at least": (
        TRIGGERED | ALWAYS,
        ["<n>1</n>", "<t>b</t>c<n>1</n>"],
        ["", "abc", "a<t>b</t>c"],
    ),
    "the first ends it": (TRIGGERED | ALWAYS | ONCE, ["<n>1</n>"], ["<n>1</n>x", "a<n>1</n>"]),
    "text without": (
        {"type": "any_text", "excludes": ["<n>", "ab"]},
        ["", "a b<"],
        ["xaby", "ab"],
    ),
    "text of a length": ({"type": "any_text", "max_chars": 2}, ["", "\u00fc\n"], ["abc"]),
    "a tag of text without": (
        OTHER | {"content": {"type": "any_text", "excludes": ["a"], "max_chars": 3}},
        ["<t>bcd</t>", "<t></t>"],
        ["<t>a</t>", "<t>bcde</t>"],
    ),
    "several ends": (
        OTHER | {"end": ["</t>", "."]},
        ["<t>a</t>", "<t>a."],
        ["<t>a</t>.", "<t>a"],
    ),
    "several ends of a number": (TAG | {"end": ["</n>", ";"]}, ["<n>1</n>", "<n>1;"], ["<n>1"]),
    "all of JSON": (NUMBER | {"json_schema": True}, ['{"a": [1]}', "null"], ["{"]),
    "optional": ({"type": "optional", "content": TAG}, ["", "<n>1</n>"], ["<n>1</n><n>1</n>"]),
    "star": ({"type": "star", "content": TAG}, ["", "<n>1</n><n>2</n>"], ["<n>x</n>"]),
    "plus": ({"type": "plus", "content": OTHER}, ["<t>a</t>", "<t></t><t>a</t>"], ["", "<t>"]),
    "plus of a regex": (
        {"type": "plus", "content": {"type": "regex", "pattern": "[a-c]+;?"}},
        ["ab", "a;bc;"],
        ["", ";"],
    ),
    "repeat": (
        {"type": "repeat", "content": TAG, "min": 1, "max": 2},
        ["<n>1</n>", "<n>1</n><n>2</n>"],
        ["", "<n>1</n>" * 3],
    ),
    "repeat without a bound": (
        {"type": "repeat", "content": OTHER, "min": 2, "max": -1},
        ["<t>1</t>" * 2, "<t></t>" * 5],
        ["<t>1</t>"],
    ),
    "Lark": (
        {"type": "grammar", "grammar": 'start: "a" B\nB: /b+/', "syntax": "lark"},
        ["abb"],
        ["a"],
    ),
    "triggered without": (
        TRIGGERED | {"excludes": ["bad"]},
        ["a<n>1</n>b"],
        ["bad", "a<n>1</n>bad"],
    ),
    "triggered in a tag": (
        {"type": "tag", "begin": "[", "content": WHOLE, "end": "]"},
        ["[]", "[a<n>1</n>b]", "[<t>]</t>]"],
        ["[a", "[a]b", "[<n>x</n>]"],
    ),
    "one at least in a tag": (
        {"type": "tag", "begin": "[", "content": WHOLE | ALWAYS, "end": "]"},
        ["[<n>1</n>]", "[<n>1</n>b<t></t>]"],
        ["[]", "[a<n>1</n>]"],
    ),
    "at most one in a tag": (
        {"type": "tag", "begin": "[", "content": WHOLE | ONCE, "end": "]"},
        ["[]", "[a<n>1</n>]", "[a]"],
        ["[<n>1</n>a]"],
    ),
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
        tree = tree | {"triggers": ["<n>", "<t>"]}  # a token has no prefixes, unlike a text
        bad = [text for text in bad if "<n" not in text.replace("<n>", "")]
    vocabulary = Bytes(llguidance, special)
    tag = msgspec.convert({"format": tree}, StructuralTag)
    assert tag.problem() is None
    grammar = tag.lark(vocabulary.special_tokens)
    assert vocabulary.error(grammar) == ""
    assert [text for text in good if not vocabulary.accepts(grammar, text)] == []
    assert [text for text in bad if vocabulary.accepts(grammar, text)] == []


WORDS = {"type": "regex", "pattern": "[a-z ]+"}
ANSWER = {"type": "const_string", "value": 'end: \n"\\'}
# For each: adjacent parts of many lengths, valid texts, and invalid texts.
MEETING: dict[str, tuple[list[dict[str, Any]], list[str], list[str]]] = {
    "a regex before what it has": (
        [WORDS, ANSWER],
        ['send: \n"\\', 'the end end: \n"\\'],
        ['end: \n"\\', "the end"],
    ),
    "any text before a constant": (
        [{"type": "any_text"}, ANSWER, {"type": "or", "elements": [WORDS, NUMBER]}],
        ['x\nend: \n"\\yes', 'end: \n"\\12'],
        ["x", 'end: \n"\\'],
    ),
    "a grammar before a grammar": (
        [{"type": "grammar", "grammar": 'root ::= x\nx ::= "a" "b"?'}] * 2 + [ANSWER],
        ['aabend: \n"\\'],
        ["aab"],
    ),
    "a tag of a regex": (
        [
            {
                "type": "tag",
                "begin": "<w>",
                "content": {"type": "regex", "pattern": ".*"},
                "end": ".",
            }
        ],
        ["<w>a.b.", "<w>."],
        ["<w>a"],
    ),
    "a schema behind a regex": ([WORDS, NUMBER], ["ab12"], ["12", "ab"]),
}


@pytest.mark.parametrize("case", MEETING)
def test_a_part_ends_where_the_next_begins(llguidance: ModuleType, case: str) -> None:
    elements, good, bad = MEETING[case]
    tag = msgspec.convert({"format": {"type": "sequence", "elements": elements}}, StructuralTag)
    vocabulary, grammar = Bytes(llguidance), tag.lark({})
    assert [text for text in good if not vocabulary.accepts(grammar, text)] == []
    assert [text for text in bad if vocabulary.accepts(grammar, text)] == []


def test_text_that_may_go_on_in_a_schema_is_refused(llguidance: ModuleType) -> None:
    from engine.grammars.check import checked

    elements = [{"type": "any_text"}, NUMBER]
    tag = msgspec.convert({"format": {"type": "sequence", "elements": elements}}, StructuralTag)
    assert "could go on" in checked(Grammar("lark", tag.lark({}))).error


def test_a_tag_has_at_most_so_many_parts() -> None:
    def problem(count: int) -> str | None:
        tags = [{"begin": f"<{n}>", "schema": {}, "end": "</>"} for n in range(count)]
        triggers = [f"<{n}" for n in range(count)]
        asked = {"structures": tags, "triggers": triggers}
        return msgspec.convert(asked, StructuralTag).problem()

    assert problem(MAX_PARTS // 3 - 1) is None
    assert problem(MAX_PARTS // 3 + 1) == f"it has more than {MAX_PARTS} parts and triggers"


class _Counted(dict[str, Any]):
    """A schema that counts how often it is serialised."""

    spelled = 0

    def items(self) -> Any:
        self.spelled += 1
        return super().items()


def test_a_schema_deep_in_a_tree_is_spelled_once() -> None:
    def spelled(depth: int) -> int:
        schema = _Counted(type="integer")
        part = Sequence_([JsonSchema(schema), Regex("a+")])
        for _ in range(depth):
            part = Sequence_([part])
        StructuralTag(part).lark({})
        return schema.spelled

    assert (spelled(depth=0), spelled(depth=25)) == (1, 1)


def test_a_long_sequence_is_followed(llguidance: ModuleType) -> None:
    text_and_end = [{"type": "any_text"}, {"type": "const_string", "value": ";"}]
    number = {"type": "json_schema", "json_schema": {"type": "integer"}}
    asked = {"format": {"type": "sequence", "elements": [*text_and_end * 500, number]}}
    grammar = msgspec.convert(asked, StructuralTag).lark({})
    vocabulary = Bytes(llguidance)
    assert vocabulary.accepts(grammar, "a;" * 500 + "7")
    assert not vocabulary.accepts(grammar, "a;" * 499 + "7")


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
        {"format": OTHER | {"end": []}},
        {"format": TAG | {"end": []}},
        {"format": {"type": "any_text", "excludes": [""]}},
        {"format": TRIGGERED | {"excludes": [""]}},
        {"format": {"type": "repeat", "content": TAG, "min": 2, "max": 1}},
        {"format": {"type": "sequence", "elements": [OTHER | {"end": ""}]}},
        {"format": tags("triggered_tags", triggers=["<n>"])},
    ],
)
def test_what_cannot_be_followed_says_why(asked: dict[str, Any]) -> None:
    assert msgspec.convert(asked, StructuralTag).problem()


@pytest.mark.parametrize(
    "unknown",
    [{"type": "table"}, {"type": "any_text", "max_tokens": 1}, NUMBER | {"style": "qwen_xml"}],
)
def test_what_is_not_known_is_refused(unknown: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"format": unknown}, StructuralTag)
