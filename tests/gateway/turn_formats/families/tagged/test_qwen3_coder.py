from __future__ import annotations

import pytest

from gateway.prompts.answer_forms import AnswerForms
from gateway.prompts.generation_request import AnswerForm
from gateway.turn_formats.families.tagged.tagged_families import Qwen3CoderFormat
from gateway.turn_formats.pieces import CallArguments, CallStarted
from gateway.turn_formats.shapes.schemas import types_of
from gateway.turn_formats.shapes.values import typed
from gateway.turn_formats.turn_format import ToolSpec
from tests.gateway.turn_formats.grammars import Bytes
from tests.gateway.turn_formats.turns import TOOLS, Turn, call, check, text

TIME = "<function=clock>\n</function>"


def weather(city: str) -> str:
    return f"<tool_call>\n<function=get_weather>\n<parameter=city>\n{city}\n</parameter>\n"


END = "</function>\n</tool_call>"

TURNS: dict[str, Turn] = {
    "without the outer mark": (f"So.\n{TIME}\nok", [text("So."), *call("clock", "{}"), text("ok")]),
    "a comma": (
        f"<tool_call>{TIME}</tool_call>, {TIME}, ok",
        [*call("clock", "{}") * 2, text(", ok")],
    ),
    "two in one": (f"<tool_call>\n{TIME}\n{TIME}\n</tool_call>", call("clock", "{}") * 2),
    "on one line": (
        "<tool_call><function=get_weather><parameter=city>Oslo</parameter></function></tool_call>",
        call("get_weather", '{"city": "Oslo"}'),
    ),
    "a text of lines": (
        weather('\n  a "b"\\\n\n') + END,
        call("get_weather", r'{"city": "\n  a \"b\"\\\n\n"}'),
    ),
    "marks in a text": (
        weather("<tool_call> </function> </tool_call> <parameter=x> </para") + END,
        call(
            "get_weather",
            '{"city": "<tool_call> </function> </tool_call> <parameter=x> </para"}',
        ),
    ),
    "a text that looks like a number": (
        weather("007") + END,
        call("get_weather", '{"city": "007"}'),
    ),
    "an unknown parameter": (
        f"{weather('Oslo')}<parameter=wind>\n3\n</parameter>\n{END}",
        call("get_weather", '{"city": "Oslo", "wind": "3"}'),
    ),
    "types": (
        weather("Oslo")
        + "<parameter=days>\n 3 \n</parameter>\n<parameter=exact>\nTrue\n</parameter>\n"
        + '<parameter=where>\n{"a": [1]}\n</parameter>\n<parameter=tags>\n["b"]\n</parameter>\n'
        + END,
        call(
            "get_weather",
            '{"city": "Oslo", "days": 3, "exact": true, "where": {"a": [1]}, "tags": ["b"]}',
        ),
    ),
    "a value of another type": (
        f"{weather('Oslo')}<parameter=days>\nsome\n</parameter>\n{END}",
        call("get_weather", '{"city": "Oslo", "days": "some"}'),
    ),
    "the function is not closed": (
        weather("Oslo") + "</tool_call> ok",
        [*call("get_weather", '{"city": "Oslo"}'), text("ok")],
    ),
    "a closing tag in a text": (
        weather("a </parameter> b\n</parameter>\nc") + END,
        call("get_weather", r'{"city": "a </parameter> b\n</parameter>\nc"}'),
    ),
    "a call object as JSON": (
        'So.\n<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>',
        [text("So."), *call("clock", "{}")],
    ),
    "an object of all arguments": (
        '<tool_call>\n<function=get_weather>\n{"city": "Oslo"}\n</function>\n</tool_call> ok',
        [*call("get_weather", '{"city": "Oslo"}'), text("ok")],
    ),
    "a parameter of all arguments": (
        weather('{"city": "Oslo"}').replace("=city", "=arguments") + END,
        call("get_weather", '{"city": "Oslo"}'),
    ),
    "text between parameters": (
        weather("Oslo") + f"and{END} ok",
        [*call("get_weather", '{"city": "Oslo"}'), text("and"), text("ok")],
    ),
    "ended in a text": (weather("Os")[:-13], call("get_weather", '{"city": "Os"}')),
    "ended in a number": (
        weather("Oslo") + "<parameter=days>\n1",
        call("get_weather", '{"city": "Oslo", "days": 1}'),
    ),
    "ended between": (weather("Oslo") + "<parame", call("get_weather", '{"city": "Oslo"}')),
    "a parameter is not closed": (
        weather("Oslo")[:-13] + f"<parameter=days>\n3\n</parameter>\n{END}",
        call("get_weather", '{"city": "Oslo", "days": 3}'),
    ),
    "no parameter is closed": (
        weather("Oslo")[:-13] + f"<parameter=days>3\n{END}",
        call("get_weather", '{"city": "Oslo", "days": 3}'),
    ),
    "nothing is closed, and another call": (
        f"{weather('Oslo')[:-13]}</tool_call>,\n{weather('Rome')[:-13]}</function>\n{weather('Bonn')}",
        [
            *call("get_weather", '{"city": "Oslo"}'),
            *call("get_weather", '{"city": "Rome"}'),
            *call("get_weather", '{"city": "Bonn"}'),
        ],
    ),
    "a value in Python": (
        f"{weather('Oslo')}<parameter=where>\n{{'a': (True, None), \"b\": 'c'}}\n</parameter>\n"
        f"<parameter=tags>\n['d', 'it\\'s',]\n</parameter>\n{END}",
        call(
            "get_weather",
            '{"city": "Oslo", "where": {"a": [true, null], "b": "c"}, "tags": ["d", "it\'s"]}',
        ),
    ),
}
CUT: dict[str, Turn] = {
    "in a text": (weather("Os\n")[:-13], call("get_weather", '{"city": "Os\\n')),
    "in a mark": (weather("Os")[:-3], call("get_weather", '{"city": "Os')),
    "in a number": (
        weather("Oslo") + "<parameter=days>\n1",
        call("get_weather", '{"city": "Oslo", "days": '),
    ),
    "between": (weather("Oslo") + "<parame", call("get_weather", '{"city": "Oslo"')),
    "at an end that may be none": (
        weather("Oslo")[:-13] + "</function>",
        call("get_weather", '{"city": "Oslo'),
    ),
    "in the name": ("So.\n<tool_call>\n<function=clo", [text("So.")]),
}
AS_TEXT = {
    "an unknown tool": "<function=rm>\n<parameter=path>\n/\n</parameter>\n</function>",
    "an unknown tool as JSON": '<tool_call>\n{"name": "rm", "arguments": {}}\n</tool_call>',
    "look-alikes": "<function>clock</function> <tool_call <function =clock>",
    "a name alone": "<function=clock",
}


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
def test_calls_are_read(turn: Turn) -> None:
    check(lambda: Qwen3CoderFormat().parser(TOOLS), turn)


@pytest.mark.parametrize("turn", CUT.values(), ids=CUT)
def test_a_turn_may_be_cut_off(turn: Turn) -> None:
    check(lambda: Qwen3CoderFormat().parser(TOOLS), turn, is_cut=True)


@pytest.mark.parametrize("written", AS_TEXT.values(), ids=AS_TEXT)
def test_what_is_no_call_is_text(written: str) -> None:
    check(lambda: Qwen3CoderFormat().parser(TOOLS), (written, [text(written)]))


def test_a_text_is_sent_as_it_comes_and_a_number_when_it_is_whole() -> None:
    parser = Qwen3CoderFormat().parser(TOOLS)
    assert parser.feed("<function=get_weather>\n<parameter=city>\n") == [
        CallStarted("get_weather"),
        CallArguments('{"city": '),
        CallArguments('"'),
    ]
    assert parser.feed('O"') == [CallArguments('O\\"')]
    parser.feed("\n</parameter>\n<parameter=days>\n")
    assert parser.feed("1") == []
    assert parser.feed("2\n</parameter>") == [CallArguments("12")]


@pytest.mark.parametrize(
    ("written", "schema", "expected"),
    [
        ("3", {"type": "integer"}, "3"),
        ("3.0", {"type": "integer"}, "3.0"),
        ("3.5", {"type": "integer"}, '"3.5"'),
        ("3", {"type": "number"}, "3"),
        ("null", {"type": ["string", "null"]}, "null"),
        ("3", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "3"),
        ("None", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null"),
        ("3", {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "3"),
        ("007", {"anyOf": [{"type": "integer"}, {"type": "string"}]}, '"007"'),
        ("'a'", {"type": ["string", "integer"]}, "\"'a'\""),
        ("True", {"type": ["string", "boolean"]}, "true"),
        ('{"a": 1}', {"type": ["string", "object"]}, '{"a": 1}'),
        ('["a"]', {"anyOf": [{"type": "array"}, {"type": "string"}]}, '["a"]'),
        (r"[{\"a\": \"b\\\\c\"}]", {"type": "array"}, r'[{"a": "b\\c"}]'),
        (r"{\"a\"", {"type": "object"}, r'"{\\\"a\\\""'),
        ("{not JSON", {"type": ["string", "object"]}, '"{not JSON"'),
        ('["a"]', {"type": ["string", "object"]}, r'"[\"a\"]"'),
        ("3", {"enum": [1, 2, 3]}, "3"),
        ("3", {"$ref": "#/$defs/n"}, "3"),
        ("3", {"$ref": "#/$defs/none"}, '"3"'),
        ("3", {}, '"3"'),
        ("False", {"type": "boolean"}, "false"),
        ("TRUE", {"type": "boolean"}, "true"),
        ("3", {"allOf": [{"$ref": "#/$defs/n"}], "description": "d"}, "3"),
        ("3", {"allOf": [{"description": "d"}, {"anyOf": [{"$ref": "#/$defs/n"}]}]}, "3"),
        ("3", {"$ref": "#/$defs/a~1b%25"}, "3"),
        ("3", {"$ref": "#/$defs/both/anyOf/1"}, "3"),
        ("[3]", {"items": {"type": "integer"}}, "[3]"),
        ("{'a': True, 'b': 'it\\'s'}", {"properties": {}}, '{"a": true, "b": "it\'s"}'),
        ('{"a": "\\ud83d", "b": None, }', {"type": "object"}, '{"a": "\\ufffd", "b": null }'),
        ("(1, 'b')", {"type": "array"}, '[1, "b"]'),
        ("[1", {"type": "array"}, '"[1"'),
        ("[" * 5000, {"type": "array"}, '"' + "[" * 5000 + '"'),
    ],
)
def test_values_are_of_the_type_that_the_schema_says(
    written: str, schema: dict[str, object], expected: str
) -> None:
    number = {"type": "integer"}
    both = {"anyOf": [{"type": "null"}, number]}
    root = {"$defs": {"n": number, "a/b%": number, "both": both}}
    assert typed(written, types_of(schema, root)) == expected


def test_a_reference_to_itself_ends() -> None:
    loop = {"$ref": "#/$defs/loop"}
    for defined in (loop, {"allOf": [loop] * 9}, {"anyOf": [loop] * 9}):
        assert types_of(loop, {"$defs": {"loop": defined}}) == frozenset()


@pytest.mark.parametrize(
    "schema",
    [{"$ref": "#/$defs/d"}, {"allOf": [{"$ref": "#/$defs/d"}, {"required": ["days"]}]}],
)
def test_parameters_behind_references_have_their_types(schema: dict[str, object]) -> None:
    days = {"type": "object", "properties": {"days": {"type": "integer"}}}
    tool = ToolSpec("note", {**schema, "$defs": {"d": days}})
    turn = "<function=note>\n<parameter=days>\n1\n</parameter>\n</function>"
    check(lambda: Qwen3CoderFormat().parser([tool]), (turn, call("note", '{"days": 1}')))


def test_a_tool_without_a_schema_takes_text() -> None:
    tool = ToolSpec("note", {"type": "object"})
    turn = "<function=note>\n<parameter=a>\n1\n</parameter>\n</function>"
    check(lambda: Qwen3CoderFormat().parser([tool]), (turn, call("note", '{"a": "1"}')))


def test_a_call_without_the_outer_mark_follows_the_schema_too() -> None:
    vocabulary = Bytes(pytest.importorskip("llguidance"))
    grammar = Qwen3CoderFormat().text_grammar(TOOLS)
    assert vocabulary.accepts(grammar, f"So.\n{TIME}\n</tool_call>")
    assert not vocabulary.accepts(grammar, "So.\n<function=rm>\n</function>\n</tool_call>")


def test_a_tool_that_is_not_strict_keeps_its_parameters_behind_a_reference() -> None:
    days = {"type": "object", "properties": {"days": {"type": "integer"}}}
    tools = (
        ToolSpec("note", {"$ref": "#/$defs/d", "$defs": {"d": days}}),
        ToolSpec("any", {"type": "object"}),
        ToolSpec("clock", None, strict=True),
    )
    grammar = AnswerForms(Qwen3CoderFormat()).grammar(AnswerForm(tools), "")
    assert grammar is not None
    vocabulary = Bytes(pytest.importorskip("llguidance"))
    for name, parameter, is_taken in (
        ("note", "days", True),
        ("any", "x", True),
        ("clock", "x", False),
    ):
        turn = f"<tool_call>\n<function={name}>\n<parameter={parameter}>\n1\n</parameter>\n{END}"
        assert vocabulary.accepts(grammar.text, turn) == is_taken, name
