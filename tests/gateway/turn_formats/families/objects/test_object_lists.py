from __future__ import annotations

from gateway.turn_formats.families.objects.object_lists import GraniteFormat
from tests.gateway.turn_formats.turns import TOOLS, call, check

TIME = '{"name": "clock", "arguments": {}}'


def test_granite_begins_calls_with_either_of_its_markers() -> None:
    for opens in ("<|tool_call|>", "<|tool_call|> ", "<tool_call> ", "<tool_call>\n"):
        turn = f"{opens}[{TIME}, {TIME}]", call("clock", "{}") * 2
        check(lambda: GraniteFormat().parser(TOOLS), turn)
    assert {"<|tool_call|>", "<tool_call>"} <= {*GraniteFormat.markers}
