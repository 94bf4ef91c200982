from __future__ import annotations

import json

import pytest

from gateway.turn_formats.families.objects.hermes import HermesFormat
from gateway.turn_formats.pieces import CallArguments, CallStarted
from tests.gateway.turn_formats.turns import TOOLS, Turn, call, check, text

OSLO = '{"city": "Oslo"}'


def written(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


ONE = written("get_weather", OSLO)
HARD = json.dumps(
    {
        "city": '</tool_call> {"name": "clock"} <tool_call> \\ " \n \u2028 \N{GRINNING FACE}',
        "where": {"a": [{"b": []}, -1.5e-7, None, True], "": {}},
    }
)

TURNS: dict[str, Turn] = {
    "empty": ("", []),
    "no call": ("It is  cold.\n\n", [text("It is  cold.\n\n")]),
    "one": (ONE, call("get_weather", OSLO)),
    "two": (f"{ONE}\n{written('clock', '{}')}", [*call("get_weather", OSLO), *call("clock", "{}")]),
    "two at once": (ONE + ONE, call("get_weather", OSLO) * 2),
    "two in one": (
        '<tool_call>\n{"name": "clock", "arguments": {}}\n{"name": "clock", "arguments": {}}'
        "\n</tool_call>",
        call("clock", "{}") * 2,
    ),
    "text around": (
        f"Let me see. \n\n{ONE}\n\nDone. ",
        [text("Let me see."), *call("get_weather", OSLO), text("Done. ")],
    ),
    "doubled braces": (
        f'<tool_call>\n{{{{"name": "get_weather", "arguments": {OSLO}}}}}\n</tool_call> ok',
        [*call("get_weather", OSLO), text("ok")],
    ),
    "in a fence": (
        ONE.replace("<tool_call>", "<tool_call>\n```json").replace("</tool", "```\n</tool") + " ok",
        [*call("get_weather", OSLO), text("ok")],
    ),
    "hard arguments": (written("get_weather", HARD), call("get_weather", HARD)),
    "no whitespace": (
        '<tool_call>{"name":"clock","arguments":{"a":1}}</tool_call>',
        call("clock", '{"a":1}'),
    ),
    "much whitespace": (
        '\n <tool_call> \n { "name" : "clock" , "arguments" : { "a" :\n1 } } \n </tool_call> \n',
        call("clock", '{ "a" :\n1 }'),
    ),
    "arguments first": (
        f'<tool_call>\n{{"arguments": {OSLO}, "name": "get_weather"}}\n</tool_call>',
        call("get_weather", OSLO),
    ),
    "with an id and a type": (
        '<tool_call>{"id": "a1", "type": "function", "name": "clock", "arguments": {}, "x": [1]}'
        "</tool_call>",
        call("clock", "{}"),
    ),
    "no arguments": ('<tool_call>\n{"name": "clock"}\n</tool_call>', call("clock", "{}")),
    "empty arguments": (written("clock", "{}"), call("clock", "{}")),
    "arguments as a string": (
        written("get_weather", json.dumps(OSLO)),
        call("get_weather", OSLO),
    ),
    "a name in escapes": (
        '<tool_call>{"name": "cl\\u006fck", "arguments": {}}</tool_call>',
        call("clock", "{}"),
    ),
    "lines in a string": (
        written("get_weather", '{"city": "a\nb\tc\x01"}'),
        call("get_weather", '{"city": "a\\nb\\tc\\u0001"}'),
    ),
    "the closing brace forgotten": (
        f'<tool_call>\n{{"name": "get_weather", "arguments": {OSLO}\n</tool_call>ok',
        [*call("get_weather", OSLO), text("ok")],
    ),
    "the end forgotten": (
        f'<tool_call>\n{{"name": "get_weather", "arguments": {OSLO}}}\n{ONE}',
        call("get_weather", OSLO) * 2,
    ),
    "no quotes": (
        written("get_weather", "{city: Oslo}") + " ok",
        [*call("get_weather", '{"city": "Oslo"}'), text("ok")],
    ),
    "in Python": (
        "<tool_call>\n{'name': 'get_weather', 'arguments': {'city': 'Oslo', 'exact': True}}\n"
        "</tool_call>",
        call("get_weather", '{"city": "Oslo", "exact": true}'),
    ),
    "broken arguments": (
        written("get_weather", '{"city": "Oslo" "days" 3}') + " ok",
        [*call("get_weather", '{"city": "Oslo"}'), text('"days" 3}}'), text("ok")],
    ),
    "broken arguments, then a call": (
        f'<tool_call>\n{{"name": "clock", "arguments": {{"a" 1\n{ONE}',
        [*call("clock", "{}"), text('"a" 1'), *call("get_weather", OSLO)],
    ),
    "ended in arguments": (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Os',
        call("get_weather", '{"city": "Os"}'),
    ),
    "arguments that are not closed": (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3\n'
        "</tool_call>",
        call("get_weather", '{"city": "Oslo", "days": 3}'),
    ),
    "no arguments, said so": (
        "\n".join(written("clock", nothing) for nothing in ("null", '""', "None", "[]", '"null"')),
        call("clock", "{}") * 5,
    ),
    "null as parameters, before the name": (
        '<tool_call>{"parameters": null, "id": null, "name": "clock"}</tool_call>',
        call("clock", "{}"),
    ),
    "half of a surrogate pair": (
        written("get_weather", '{"city": "\\ud83d \\ud83d\\ude00"}'),
        call("get_weather", '{"city": "\\ufffd \\ud83d\\ude00"}'),
    ),
    "a backslash that escapes nothing": (
        written("get_weather", r'{"city": "C:\Oslo \d"}'),
        call("get_weather", r'{"city": "C:\\Oslo \\d"}'),
    ),
    "a comma between": (
        f"{ONE}, \n{ONE},{ONE}, and",
        [*(call("get_weather", OSLO) * 3), text(", and")],
    ),
    "a comma within": (
        '<tool_call>{"name": "clock", "arguments": {}},\n{"name": "clock"}</tool_call>',
        call("clock", "{}") * 2,
    ),
    "a list in one mark": (
        f'<tool_call>\n[{{"name": "clock"}}, {{"name": "get_weather", "arguments": {OSLO}}}]\n'
        "</tool_call> ok",
        [*call("clock", "{}"), *call("get_weather", OSLO), text("ok")],
    ),
    "a brace too many": (
        f"{written('clock', '{}}')} ok {written('get_weather', OSLO + '}}')}",
        [*call("clock", "{}"), text("ok"), *call("get_weather", OSLO)],
    ),
    "an object of the function": (
        '<tool_call>{"type": "function", "function": {"name": "clock", "arguments": {}}}\n'
        '</tool_call><tool_call>{"function": "clock"}</tool_call>',
        call("clock", "{}") * 2,
    ),
    "a namespace": (written("functions.clock", "{}"), call("clock", "{}")),
    "cut off after arguments": (
        f'<tool_call>\n{{"name": "get_weather", "arguments": {OSLO}',
        call("get_weather", OSLO),
    ),
}

AS_TEXT = {
    "an unknown tool": written("rm", '{"path": "/"}'),
    "an unknown tool, whose arguments name markers": written("rm", json.dumps({"a": ONE})),
    "markers in a string as they are": f'<tool_call>{{"note": "{ONE[:11]} </tool_call>"}} x',
    "two names": '<tool_call>{"name": "rm", "name": "clock", "arguments": {}}</tool_call>',
    "no object": "<tool_call>\nclock()\n</tool_call>",
    "a list": "<tool_call>[]</tool_call>",
    "an empty object": "a <tool_call> {} </tool_call> b",
    "other members": '<tool_call>{"a": 1, "name": "clock"}</tool_call>',
    "a function within a function": "<tool_call>" + '{"function": ' * 3,
    "a name that is none": '<tool_call>{"name": 1, "arguments": {}}</tool_call>',
    "arguments that are none": '<tool_call>{"name": "clock", "arguments": [1]}</tool_call>',
    "a string that is no object": '<tool_call>{"name": "clock", "arguments": "now"}</tool_call>',
    "half of a surrogate pair": '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
    "a comma that is none": "<tool_call>, <tool_call>",
    "broken before the arguments": '<tool_call>{"name": "clock",, "arguments": {}}</tool_call>',
    "begun": "a  <tool_ca",
    "opened": "a \n<tool_call>\n",
    "cut off in the name": '<tool_call>\n{"name": "get_wea',
    "cut off before the arguments": '<tool_call>\n{"name": "get_weather", "arguments": ',
    "look-alikes": "<tool_call <tool-call> <<tool_cal>> </tool_call> <tool_calls>",
    "null": "a\0b\0",
}


CUT: dict[str, Turn] = {
    "in a mark": ("So. <tool_c", [text("So.")]),
    "after the mark": ("So. <tool_call>\n", [text("So.")]),
    "in the name": ('<tool_call>\n{"name": "get_wea', []),
    "in arguments": (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Os',
        call("get_weather", '{"city": "Os'),
    ),
    "in a key": (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "da',
        call("get_weather", '{"city": "Oslo"'),
    ),
    "in a text": ("It is  ", [text("It is  ")]),
}


@pytest.mark.parametrize("turn", CUT.values(), ids=CUT)
def test_a_turn_may_be_cut_off(turn: Turn) -> None:
    check(lambda: HermesFormat().parser(TOOLS), turn, is_cut=True)


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
def test_calls_are_read(turn: Turn) -> None:
    check(lambda: HermesFormat().parser(TOOLS), turn)


@pytest.mark.parametrize("written", AS_TEXT.values(), ids=AS_TEXT)
def test_what_is_no_call_is_text(written: str) -> None:
    check(lambda: HermesFormat().parser(TOOLS), (written, [text(written)]))


def test_functions_within_functions_are_text_however_many() -> None:
    written = "<tool_call>" + '{"function": ' * 2000
    parser = HermesFormat().parser(TOOLS)
    assert [*parser.feed(written), *parser.end()] == [text(written)]


def test_a_call_after_what_is_none_is_read() -> None:
    turn = f"<tool_call>\nno\n{ONE}"
    check(
        lambda: HermesFormat().parser(TOOLS),
        (turn, [text("<tool_call>\nno"), *call("get_weather", OSLO)]),
    )


def test_what_is_certain_is_sent_at_once() -> None:
    parser = HermesFormat().parser(TOOLS)
    assert parser.feed("A b") == [text("A b")]
    assert parser.feed(" <tool") == []
    assert parser.feed("box>") == [text(" <toolbox>")]
    assert parser.feed('<tool_call>{"name": "clock", "arguments": ') == []
    assert parser.feed("{") == [CallStarted("clock"), CallArguments("{")]
    assert parser.feed('"a": "b') == [CallArguments('"a": "b')]
    assert parser.feed("c\\u00") == [CallArguments("c")]
