"""The grammar of each format: its parser reads every accepted text as calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from types import ModuleType
from typing import Any

import pytest

from engine.link.messages import Grammar
from gateway.errors import BadRequest
from gateway.prompts.answer_forms import AnswerForms
from gateway.prompts.chats.free_formats import lark_spec
from gateway.prompts.generation_request import AnswerForm
from gateway.turn_formats.turn_format import LARK, ToolFormat, ToolSpec
from tests.gateway.turn_formats.formats import FORMATS, Call, Written
from tests.gateway.turn_formats.grammars import Bytes
from tests.gateway.turn_formats.turns import TOOLS, WEATHER, calls_of, read, text

STRICT = ToolSpec(WEATHER.name, WEATHER.parameters, strict=True)
DAYS = ToolSpec(
    WEATHER.name,
    {"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]}
    | {"additionalProperties": False},
)
OSLO = {"city": "Oslo", "days": 3, "exact": True, "where": {"a": "b"}, "tags": ["c", "d"]}

CALL: Call = ("get_weather", OSLO)
TIME: Call = ("clock", {})
WRONG: dict[str, Call] = {
    "no city": ("get_weather", {"days": 1}),
    "a word for a number": ("get_weather", {"city": "Oslo", "days": "x"}),
    "another argument": ("get_weather", {"city": "Oslo", "wind": 1}),
    "an unknown tool": ("rm", {}),
    "arguments of a tool without": ("clock", {"zone": "x"}),
}


@pytest.fixture(scope="module")
def llguidance() -> ModuleType:
    return pytest.importorskip("llguidance")  # type: ignore[no-any-return]


# Each format with its marks as characters, and as special tokens if it has any.
CELLS = {
    f"{name}-{'tokens' if are_tokens else 'characters'}": (written, are_tokens)
    for name, written in FORMATS.items()
    for are_tokens in ((False, True) if written.special else (False,))
}


@pytest.fixture(params=list(CELLS.values()), ids=list(CELLS))
def cell(request: pytest.FixtureRequest) -> tuple[Written, bool]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def written(cell: tuple[Written, bool]) -> Written:
    return cell[0]


@pytest.fixture
def are_tokens(cell: tuple[Written, bool]) -> bool:
    return cell[1]


@pytest.fixture(scope="module")
def vocabularies(llguidance: ModuleType) -> Callable[[tuple[str, ...]], Bytes]:
    """Return a function that makes the vocabulary of some special tokens once."""
    return cache(partial(Bytes, llguidance))


@pytest.fixture
def vocabulary(
    vocabularies: Callable[[tuple[str, ...]], Bytes], written: Written, are_tokens: bool
) -> Bytes:
    return vocabularies(tuple(written.special) if are_tokens else ())


@pytest.fixture
def tool_format(written: Written, vocabulary: Bytes) -> ToolFormat:
    made: ToolFormat = written.format(vocabulary.special_tokens)
    return made


def test_grammars_compile(tool_format: ToolFormat, vocabulary: Bytes) -> None:
    for tools in ([STRICT], TOOLS):
        for at_least, at_most in ((1, 1), (1, 2), (2, 2), (1, None), (3, None)):
            grammar = tool_format.call_grammar(tools, at_least=at_least, at_most=at_most)
            assert vocabulary.error(grammar) == ""
        assert vocabulary.error(tool_format.text_grammar(tools)) == ""
    assert vocabulary.error(tool_format.text_grammar([])) == ""


@pytest.mark.usefixtures("llguidance")
def test_an_error_says_whose_schema_it_is() -> None:
    from engine.grammars.check import checked

    refused = ToolSpec("lookup", {"type": "object", "not": {}}, strict=True)
    made = FORMATS["hermes"].format({})
    grammar = made.call_grammar([STRICT, refused])
    error = checked(Grammar("lark", grammar)).error
    assert error == "tool lookup: the keyword `not` at # is not supported"
    assert checked(Grammar("lark", made.call_grammar([STRICT]))).error == ""


def test_calls_are_accepted_and_read(
    tool_format: ToolFormat, vocabulary: Bytes, written: Written
) -> None:
    grammar = tool_format.call_grammar(TOOLS)
    for calls in ([CALL], [TIME], [CALL, TIME], [CALL, CALL, CALL]):
        turn = written.turn(*calls)
        assert vocabulary.accepts(grammar, turn)
        assert vocabulary.accepts(tool_format.text_grammar(TOOLS), turn)
        assert calls_of(read(tool_format.parser(TOOLS), [turn])) == calls


TREE = {"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}} | {
    "additionalProperties": False
}


def test_a_schema_may_refer_to_itself_twice(
    tool_format: ToolFormat, vocabulary: Bytes, written: Written
) -> None:
    grammar = tool_format.call_grammar([ToolSpec("grow", TREE, strict=True)])
    trees: list[dict[str, Any]] = [{}, {"b": {}}, {"a": {"a": {}, "b": {"b": {}}}, "b": {"a": {}}}]
    for value in trees:
        assert vocabulary.accepts(grammar, written.turn(("grow", value)))
    assert not vocabulary.accepts(grammar, written.turn(("grow", {"a": {"c": {}}})))


NESTED = r"""
start: term ("+" term)*
term: /[a-z0-9 .]+/ | STRING | "(" start ")"
STRING: /"[^"]*"/
%import common.WS
%ignore WS
"""
NESTED_TEXTS = {
    "a": True,
    '((a) + "b\\c") + "<d>"': True,
    "(a\n + (b))\t": True,
    "((a)": False,
    '"a" b"': False,
    "+": False,
    "": False,
}


def test_a_text_may_follow_a_grammar_that_is_recursive(
    tool_format: ToolFormat, vocabulary: Bytes, written: Written
) -> None:
    tool = lark_spec(ToolSpec("calc", None), NESTED)
    grammar = tool_format.call_grammar([tool])
    calls: dict[str, Call] = {said: ("calc", {"input": said}) for said in NESTED_TEXTS}
    turns = {said: written.turn(calls[said]) for said in NESTED_TEXTS}
    assert {said: vocabulary.accepts(grammar, turns[said]) for said in turns} == NESTED_TEXTS
    for said in filter(NESTED_TEXTS.get, NESTED_TEXTS):
        assert calls_of(read(tool_format.parser([tool]), [turns[said]])) == [calls[said]]


def test_no_clients_schema_holds_a_grammar(
    tool_format: ToolFormat, vocabulary: Bytes, written: Written
) -> None:
    """Positive control: a free-text tool's grammar is a string that is no valid JSON."""
    sent = {"type": "object", "properties": {"input": {"type": "string", LARK: NESTED}}}
    turn = written.turn(("calc", {"input": "((a)"}))
    said = [ToolSpec("calc", sent), lark_spec(ToolSpec("calc", None), NESTED)]
    grammars = [tool_format.call_grammar([tool]) for tool in said]
    assert [vocabulary.accepts(one, turn) for one in grammars] == [True, False]


@pytest.mark.parametrize("written", FORMATS.values(), ids=FORMATS)
def test_a_grammar_of_too_many_characters_is_refused(written: Written) -> None:
    def grammar(names: int) -> Grammar | None:
        properties = {f"p{number}": {"type": "string"} for number in range(names)}
        form = AnswerForm((ToolSpec("fill", {"properties": properties}),), least_calls=1)
        return AnswerForms(written.format({})).grammar(form, "")

    assert grammar(names=100) is not None, "the control"
    with pytest.raises(BadRequest, match="more than 131072 characters") as refused:
        grammar(names=9_000)
    assert refused.value.param == "tools"


def test_as_many_calls_as_asked_for(
    tool_format: ToolFormat, vocabulary: Bytes, written: Written
) -> None:
    one, two, three = (written.turn(*[TIME] * count) for count in (1, 2, 3))

    def accepted(at_least: int, at_most: int | None) -> list[bool]:
        grammar = tool_format.call_grammar(TOOLS, at_least=at_least, at_most=at_most)
        return [vocabulary.accepts(grammar, turn) for turn in (one, two, three)]

    assert accepted(1, 1) == [True, False, False]
    assert accepted(1, 2) == [True, True, False]
    assert accepted(2, 2) == [False, True, False]
    assert accepted(2, None) == [False, True, True]


def test_wrong_calls_are_refused(
    tool_format: ToolFormat, vocabulary: Bytes, written: Written
) -> None:
    called, spoken = tool_format.call_grammar(TOOLS), tool_format.text_grammar(TOOLS)
    for name, wrong in WRONG.items():
        turn = written.turn(wrong)
        assert not vocabulary.accepts(called, turn), name
        pieces = read(tool_format.parser(TOOLS), [turn])
        # the wrong call is allowed as text, for example as a list that the user asked for
        is_text = pieces == [text(turn)]
        assert not vocabulary.accepts(spoken, turn) or is_text, name


def test_text_is_accepted_where_it_may_be(
    tool_format: ToolFormat, vocabulary: Bytes, written: Written, are_tokens: bool
) -> None:
    turn = written.before_text + "It is {cold}.\n\n[1] <b>"
    assert vocabulary.accepts(tool_format.text_grammar(TOOLS), turn)
    assert vocabulary.accepts(tool_format.text_grammar([]), turn)
    assert not vocabulary.accepts(tool_format.call_grammar(TOOLS), turn)
    if written.starts_turn:
        return
    for calls, right in (([CALL, TIME], True), ([WRONG["no city"]], False)):
        turn = f"{written.before_text}It is.\n{written.after_text}{written.turn(*calls)}"
        right = right and (are_tokens or not written.has_token)
        assert vocabulary.accepts(tool_format.text_grammar(TOOLS), turn) == right


def test_no_place_takes_newlines_for_ever(
    tool_format: ToolFormat, vocabulary: Bytes, written: Written
) -> None:
    turn, grammar = written.turn(("get_weather", {"days": 3})), tool_format.call_grammar([DAYS])
    assert vocabulary.accepts(grammar, turn)
    for place in range(len(turn) + 1):
        assert not vocabulary.accepts(grammar, turn[:place] + "\n" * 40 + turn[place:])


def test_a_turn_of_no_calls_cannot_be_asked_for(tool_format: ToolFormat) -> None:
    for tools, at_least, at_most in (((), 1, 1), (TOOLS, 0, 1), (TOOLS, 2, 1)):
        with pytest.raises(ValueError, match="at least one call"):
            tool_format.call_grammar(tools, at_least=at_least, at_most=at_most)
