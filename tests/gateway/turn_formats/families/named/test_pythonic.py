from __future__ import annotations

import pytest

from gateway.turn_formats.families.named.pythonic import Lfm2Format, Olmo3Format, PythonicFormat
from gateway.turn_formats.shapes.python_literal import as_json
from tests.gateway.turn_formats.turns import TOOLS, Turn, call, check, text

TURNS: dict[str, Turn] = {
    "between marks": ("<|python_start|>[clock()]<|python_end|>", call("clock", "{}")),
    "spaces": (
        "[ clock( a = 1 , ) , clock ( ) ]",
        [*call("clock", '{"a": 1}'), *call("clock", "{}")],
    ),
    "single quotes": (
        "[get_weather(city='O\\'s\"lo')]",
        call("get_weather", '{"city": "O\'s\\"lo"}'),
    ),
    "triple quotes": ("[clock(a='''b'c\n''', d='')]", call("clock", '{"a": "b\'c\\n", "d": ""}')),
    "all values": (
        "[clock(a=[1, -2.5, True], b={'c': None}, d=(1,), e=false, f=\"), (\")]",
        call(
            "clock", '{"a": [1, -2.5, true], "b": {"c": null}, "d": [1], "e": false, "f": "), ("}'
        ),
    ),
    "numbers with zeros, and sets": (
        "[clock(a=07, b=[-003.50, 0, 1e5], c={'x', 'y'}, d={'e': {1}, 'f': {}})]",
        call("clock", '{"a": 7, "b": [-3.50, 0, 1e5], "c": ["x", "y"], "d": {"e": [1], "f": {}}}'),
    ),
    "quotes in a text": (
        "[clock(a='sed -n '1,9p' x', b='c')]",
        call("clock", '{"a": "sed -n \'1,9p\' x", "b": "c"}'),
    ),
    "a number as a string": (
        '[get_weather(city="7", days="3")]',
        call("get_weather", '{"city": "7", "days": 3}'),
    ),
    "text after": ("[clock()] ok", [*call("clock", "{}"), text("ok")]),
    "an unknown tool after one": ("[clock(), rm()]", [*call("clock", "{}"), text(", rm()]")]),
    "no literal": ("[clock(a=b, c=1)]", call("clock", '{"a": "b", "c": 1}')),
    "an expression": ("[clock(a=1 + f(2, 3))]", call("clock", '{"a": "1 + f(2, 3)"}')),
    "a position": ("[clock(1)]", [*call("clock", "{}"), text("1)]")]),
    "ended in a value": ('[clock(a=1, b="c', call("clock", '{"a": 1, "b": "\\"c"}')),
    "ended in a name": ("[clock(a=1, b", call("clock", '{"a": 1}')),
    "cut off after a call": ("[clock()", call("clock", "{}")),
}
AS_TEXT = {
    "an unknown tool": "[rm(path='/')]",
    "a list": '[1, 2, "clock()"]',
    "after text": "So: [clock()]",
    "without brackets": "clock()",
    "a link": "[clock](https://clock)",
    "a mark alone": "<|python_start|>clock()<|python_end|>",
    "begun": "[clo",
}


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
def test_calls_are_read(turn: Turn) -> None:
    check(lambda: PythonicFormat().parser(TOOLS), turn)


@pytest.mark.parametrize("written", AS_TEXT.values(), ids=AS_TEXT)
def test_what_is_no_call_is_text(written: str) -> None:
    check(lambda: PythonicFormat().parser(TOOLS), (written, [text(written)]))


OBJECTS: dict[str, Turn] = {  # what LFM2 writes if a system prompt asks for JSON
    "a list": (
        '<|tool_call_start|>[{"name": "clock", "arguments": {"a": 1}}, {"name": "clock"}]'
        "<|tool_call_end|> ok",
        [*call("clock", '{"a": 1}'), *call("clock", "{}"), text("ok")],
    ),
    "one": ('<|tool_call_start|>{"name": "clock"}<|tool_call_end|>', call("clock", "{}")),
    "unknown": (
        '<|tool_call_start|>[{"name": "rm"}]<|tool_call_end|>',
        [text('<|tool_call_start|>[{"name": "rm"}]<|tool_call_end|>')],
    ),
}


@pytest.mark.parametrize("turn", OBJECTS.values(), ids=OBJECTS)
def test_objects_between_marks_are_read(turn: Turn) -> None:
    check(lambda: Lfm2Format().parser(TOOLS), turn)


LINES: dict[str, Turn] = {  # calls on separate lines, as OLMo 3 writes them
    "two lines": (
        'So.\n<function_calls>\nget_weather(city="Oslo", days=3)\nclock(a=null)\n</function_calls>',
        [
            text("So."),
            *call("get_weather", '{"city": "Oslo", "days": 3}'),
            *call("clock", '{"a": null}'),
        ],
    ),
    "in Python's words": (
        "<function_calls>clock(a=None, b={'c': True})</function_calls>",
        call("clock", '{"a": null, "b": {"c": true}}'),
    ),
    "as a list": ("<function_calls>[clock(), clock()]</function_calls>", call("clock", "{}") * 2),
    "ended in a call": ("<function_calls>clock(a=1", call("clock", '{"a": 1}')),
    "two blocks, and a text": (
        "<function_calls>clock()</function_calls><function_calls>clock()</function_calls> ok",
        [*(call("clock", "{}") * 2), text("ok")],
    ),
    "an unknown tool": (
        "<function_calls>rm(path='/')</function_calls>",
        [text("<function_calls>rm(path='/')</function_calls>")],
    ),
}


@pytest.mark.parametrize("turn", LINES.values(), ids=LINES)
def test_calls_in_lines_are_read(turn: Turn) -> None:
    check(lambda: Olmo3Format().parser(TOOLS), turn)


@pytest.mark.parametrize(
    ("literal", "expected"),
    [
        (r"'\x41\u00e9\U0001f600\101\n\q'", '"A\u00e9\N{GRINNING FACE}A\\n\\\\q"'),
        (r"'\ud800 \ud83d\ude00'", '"\ufffd \N{GRINNING FACE}"'),
        ("{'a': [(), {}]}", '{"a": [[], {}]}'),
        ("{1: 2}", None),
        ("open('x')", None),
        ("1_000", None),
        ("", None),
        ("[" * 100_000, None),
        ("'a", None),
    ],
)
def test_literals(literal: str, expected: str | None) -> None:
    assert as_json(literal) == expected
