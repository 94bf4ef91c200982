from __future__ import annotations

import pytest

from gateway.turn_formats.families.objects.mistral import MistralFormat, MistralV11Format
from tests.gateway.turn_formats.turns import TOOLS, Turn, call, check, text

TIME = '{"name": "clock", "arguments": {}}'

TURNS: dict[str, Turn] = {
    "a list without spaces": (f"[TOOL_CALLS][{TIME},{TIME}]", call("clock", "{}") * 2),
    "with ids": (
        '[TOOL_CALLS] [{"name": "clock", "arguments": {}, "id": "abcDEF123"}]',
        call("clock", "{}"),
    ),
    "the marker twice": (f"[TOOL_CALLS] [TOOL_CALLS] [{TIME}]", call("clock", "{}")),
    "an object alone": (f"[TOOL_CALLS] {TIME} so", [*call("clock", "{}"), text("so")]),
    "the list is not closed": (f"[TOOL_CALLS] [{TIME}", call("clock", "{}")),
    "named, with ids": (
        '[TOOL_CALLS]clock[CALL_ID]abcDEF123[ARGS]{"a": 1}[TOOL_CALLS]clock[ARGS] {}',
        [*call("clock", '{"a": 1}'), *call("clock", "{}")],
    ),
    "named, without a mark": ('[TOOL_CALLS]clock{"a": 1}', call("clock", '{"a": 1}')),
    "named and broken": (
        '[TOOL_CALLS]clock[ARGS]{"a" 1}[TOOL_CALLS]clock[ARGS]{}',
        [*call("clock", "{}"), text('"a" 1}'), *call("clock", "{}")],
    ),
    "named, without arguments": (
        "[TOOL_CALLS]clock[ARGS][TOOL_CALLS]clock[ARGS]null, [TOOL_CALLS]clock",
        call("clock", "{}") * 3,
    ),
    "a brace too many": (
        f"[TOOL_CALLS] [{TIME}}}, {TIME}][TOOL_CALLS]clock[ARGS]{{}}}} so",
        [*(call("clock", "{}") * 3), text("so")],
    ),
    "two lists": (f"[TOOL_CALLS][{TIME}]\n[TOOL_CALLS][{TIME}]", call("clock", "{}") * 2),
    "a mark in arguments": (
        '[TOOL_CALLS]clock[ARGS]{"a": "[TOOL_CALLS]clock[ARGS]{}"}',
        call("clock", '{"a": "[TOOL_CALLS]clock[ARGS]{}"}'),
    ),
}
AS_TEXT = {
    "an empty list": "[TOOL_CALLS] []",
    "no call": "a [TOOL_CALLS] none",
    "a name alone": "[TOOL_CALLS]clo",
    "a name and no object": "[TOOL_CALLS]clock[ARGS]now",
    "an unknown name": '[TOOL_CALLS]rm[ARGS]{"a": "b"}',
    "a call in a string of an unknown tool's arguments": (
        '[TOOL_CALLS] [{"name": "rm", "arguments": {"a": "[TOOL_CALLS]clock[ARGS]{}"}}]'
    ),
    "look-alikes": "[TOOL_CALL] [TOOL_CALLS [[TOOL_] [ARGS]{}",
}


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
@pytest.mark.parametrize("made", [MistralFormat, MistralV11Format])
def test_calls_are_read(made: type[MistralFormat | MistralV11Format], turn: Turn) -> None:
    check(lambda: made().parser(TOOLS), turn)


@pytest.mark.parametrize("written", AS_TEXT.values(), ids=AS_TEXT)
def test_what_is_no_call_is_text(written: str) -> None:
    check(lambda: MistralFormat().parser(TOOLS), (written, [text(written)]))
