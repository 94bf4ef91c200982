from __future__ import annotations

import pytest

from gateway.turn_formats.families.named.glm4 import Glm4Format
from tests.gateway.turn_formats.turns import TOOLS, Turn, call, check, text

TURNS: dict[str, Turn] = {
    "a call": ('get_weather\n{"city": "Oslo"}', call("get_weather", '{"city": "Oslo"}')),
    "after an empty line": ("\nclock\n{}\n", call("clock", "{}")),
    "several": ("clock\n{}<|assistant|>clock\n{}", call("clock", "{}") * 2),
    "no arguments": ("clock\n", call("clock", "{}")),
    "ended in arguments": ('clock\n{"a": 1', call("clock", '{"a": 1}')),
    "a text, and a call": ("\nSo.<|assistant|>clock\n{}", [text("\nSo."), *call("clock", "{}")]),
    "text after": ("clock\n{} so", [*call("clock", "{}"), text("so")]),
}
AS_TEXT = {
    "an answer": "\nIt is\ncold.",
    "an unknown tool": '\nrm\n{"path": "/"}',
    "a name in a line": "\nclock is what I call.\n{}",
    "a name and a text": "\nclock\nIt is noon.",
    "a name on a later line": "\nNow:\nclock\n{}",
}


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
def test_calls_are_read(turn: Turn) -> None:
    check(lambda: Glm4Format().parser(TOOLS), turn)


@pytest.mark.parametrize("written", AS_TEXT.values(), ids=AS_TEXT)
def test_what_is_no_call_is_text(written: str) -> None:
    check(lambda: Glm4Format().parser(TOOLS), (written, [text(written)]))
