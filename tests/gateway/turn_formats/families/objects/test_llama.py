from __future__ import annotations

import pytest

from gateway.turn_formats.families.objects.llama import LlamaFormat
from gateway.turn_formats.pieces import TextPiece
from tests.gateway.turn_formats.turns import TOOLS, Turn, call, check, text

TIME = '{"name": "clock", "parameters": {}}'

TURNS: dict[str, Turn] = {
    "in Python after the tag": (
        'So. <|python_tag|>get_weather.call(city="Oslo", days=3)',
        [text("So."), *call("get_weather", '{"city": "Oslo", "days": 3}')],
    ),
    "after the tag": (f"<|python_tag|>{TIME}", call("clock", "{}")),
    "after Llama 4's marks": (f"<|python_start|><|python_end|>{TIME}", call("clock", "{}")),
    "between Llama 4's marks": (f"<|python_start|>{TIME}<|python_end|>", call("clock", "{}")),
    "after a text between the marks": (
        f"<|python_start|>So. <|python_end|>{TIME}{TIME}",
        [text("So."), *call("clock", "{}") * 2],
    ),
    "a text between the marks": ("<|python_start|>print(1)<|python_end|>", [text("print(1)")]),
    "text after the marks": (
        f"<|python_start|>{TIME}<|python_end|> ok",
        [*call("clock", "{}"), text(" ok")],
    ),
    "after text and the tag": (f"So. <|python_tag|> {TIME}", [text("So."), *call("clock", "{}")]),
    "the tag before each": (f"<|python_tag|>{TIME}; <|python_tag|>{TIME}", call("clock", "{}") * 2),
    "without whitespace": (f"{TIME};{TIME}", call("clock", "{}") * 2),
    "without a semicolon": (f"{TIME}\n{TIME}{TIME}", call("clock", "{}") * 3),
    "the last semicolon": (f"{TIME}; ", call("clock", "{}")),
    "text after a semicolon": (f"{TIME}; so", [*call("clock", "{}"), text("; so")]),
    "named arguments": ('{"name": "clock", "arguments": {"a": 1}}', call("clock", '{"a": 1}')),
    "a type first": (
        '{"type": "function", "name": "clock", "parameters": {}}',
        call("clock", "{}"),
    ),
    "broken arguments": (
        '{"name": "clock", "parameters": {"a" b}}; x',
        [*call("clock", "{}"), text('"a" b}}; x')],
    ),
    "a list": (f"[{TIME}, {TIME}] ok", [*call("clock", "{}") * 2, text("ok")]),
    "in a fence": (f"```json\n{TIME}\n```", call("clock", "{}")),
    "in a fence without a language": (f"```\n[{TIME}]\n``` ok", [*call("clock", "{}"), text("ok")]),
    "commas": (f"{TIME}, {TIME},{TIME}", call("clock", "{}") * 3),
    "a brace too many": (f"{TIME}}}; {TIME}}}", call("clock", "{}") * 2),
    "no parameters": ('{"name": "clock", "parameters": null}', call("clock", "{}")),
    "a function's name": ('{"function": "clock", "parameters": {}}', call("clock", "{}")),
    "ended too soon": ('{"name": "clock", "parameters": {"a": "b', call("clock", '{"a": "b"}')),
}
AS_TEXT = {
    "an object": '{"city": "Oslo", "name": "clock", "parameters": {}}',
    "a person": '{"name": "Bob", "age": 3}',
    "an object in text": f"So: {TIME}",
    "a fence in text": f"So:\n```json\n{TIME}\n```",
    "code in a fence": '```python\nprint({"name": "clock"})\n```',
    "an object in a fence": '```json\n{"city": "Oslo"}\n```',
    "a list of others": "[1, 2] and [{}]",
    "a builtin tool": '<|python_tag|>brave_search.call(query="x")',
    "code": '<|python_tag|>print("{}")',
    "a tag in a string of an object": f'{{"note": "<|python_tag|>{TIME[:9]}"}}',
    "the last mark alone": f"So.<|python_end|>{TIME}",
    "look-alikes": "<|python_tag> <|python| <python_tag|> {;}",
}


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
def test_calls_are_read(turn: Turn) -> None:
    check(lambda: LlamaFormat().parser(TOOLS), turn)


@pytest.mark.parametrize("written", AS_TEXT.values(), ids=AS_TEXT)
def test_what_is_no_call_is_text(written: str) -> None:
    check(lambda: LlamaFormat().parser(TOOLS), (written, [text(written)]))


def test_an_object_that_is_no_call_is_sent_from_its_first_key_on() -> None:
    parser = LlamaFormat().parser(TOOLS)
    assert parser.feed('{"city"') == [TextPiece('{"city"')]
    assert parser.feed(': "Os') == [TextPiece(': "Os')]
