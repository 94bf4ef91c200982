from __future__ import annotations

import pytest

from gateway.turn_formats.families.named.gemma import FunctionGemmaFormat, Gemma4Format
from tests.gateway.turn_formats.turns import TOOLS, Turn, call, check, text

END = "<end_function_call>"


def written(name: str, arguments: str) -> str:
    return f"<start_function_call>call:{name}{arguments}{END}"


TURNS: dict[str, Turn] = {
    "text before": (
        f"So.\n{written('clock', '{}')}<start_function_response>",
        [text("So."), *call("clock", "{}"), text("<start_function_response>")],
    ),
    "without the word": ("<start_function_call>clock{}", call("clock", "{}")),
    "a colon in place of the word": ("<start_function_call>:clock{}", call("clock", "{}")),
    "a number in quotes": (
        written("get_weather", "{city:<escape>7<escape>,days:<escape>3<escape>,exact:true}"),
        call("get_weather", '{"city": "7", "days": 3, "exact": true}'),
    ),
    "JSON": (
        written("get_weather", '{"city": "O,s\\"lo}", "tags": ["a", <escape>b<escape>], days:3}'),
        call("get_weather", '{"city": "O,s\\"lo}", "tags": ["a", "b"], "days": 3}'),
    ),
    "ended in JSON": (
        written("get_weather", '{"city": "Os')[: -len("<end_function_call>")],
        call("get_weather", '{"city": null}'),
    ),
    "spaces": (
        written("clock", " { a : 1 , b : [ 1 , 2 ] } "),
        call("clock", '{"a": 1, "b": [1, 2]}'),
    ),
    "what an escape would be for": (
        written("get_weather", '{city:<escape>{"a": [1,\n2]} <esc\\<escape>}'),
        call("get_weather", r'{"city": "{\"a\": [1,\n2]} <esc\\"}'),
    ),
    "nested": (
        written("clock", "{a:{b:[{},[]],<escape>c d<escape>:null},e:True}"),
        call("clock", '{"a": {"b": [{}, []], "c d": null}, "e": true}'),
    ),
    "a bare word": (written("get_weather", "{city:Oslo}"), call("get_weather", '{"city": "Oslo"}')),
    "a comma forgotten": (
        written("clock", "{a:<escape>x<escape>b:2}"),
        call("clock", '{"a": "x", "b": 2}'),
    ),
    "broken": (
        written("clock", "{b:{a 1}}") + "ok",
        [*call("clock", '{"b": {}}'), text("a 1}}"), text("ok")],
    ),
    "ended in a string": (
        "<start_function_call>call:clock{a:[<escape>x",
        call("clock", '{"a": ["x"]}'),
    ),
    "ended in a number": ("<start_function_call>call:clock{a:1", call("clock", '{"a": 1}')),
    "ended before a value": ("<start_function_call>call:clock{a:", call("clock", '{"a": null}')),
    "too deep": (
        "<start_function_call>call:clock{a:" + "[" * 80,
        [*call("clock", '{"a": ' + "[" * 64 + "null" + "]" * 64 + "}"), text("[" * 16)],
    ),
    "no arguments": (written("clock", "") + written("clock", " null"), call("clock", "{}") * 2),
    "a comma between": (
        f"{written('clock', '{}')}, {written('clock', '{}')}",
        call("clock", "{}") * 2,
    ),
}

AS_TEXT = {
    "an unknown tool": written("rm", "{path:<escape>/<escape>}"),
    "no object": written("clock", " now"),
    "look-alikes": "<start_function call> <escape> call:clock{}",
}


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
def test_calls_are_read(turn: Turn) -> None:
    check(lambda: FunctionGemmaFormat().parser(TOOLS), turn)


@pytest.mark.parametrize("written", AS_TEXT.values(), ids=AS_TEXT)
def test_what_is_no_call_is_text(written: str) -> None:
    check(lambda: FunctionGemmaFormat().parser(TOOLS), (written, [text(written)]))


def test_gemma_4_has_other_marks() -> None:
    turn = '<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,days:3}<tool_call|>'
    check(
        lambda: Gemma4Format().parser(TOOLS),
        (turn, call("get_weather", '{"city": "Oslo", "days": 3}')),
    )
