from __future__ import annotations

import pytest

from gateway.turn_formats.families.named.deepseek import DeepSeekV3Format, DeepSeekV31Format
from gateway.turn_formats.reasoning import THINK
from gateway.turn_formats.turn_format import TurnParser
from tests.gateway.turn_formats.turns import TOOLS, Turn, call, check, text, thought

CALLS, CALLS_END, CALL, CALL_END, SEP = DeepSeekV3Format.markers
V3 = f"{CALL}function{SEP}clock\n```json\n{{}}\n```{CALL_END}"
V31 = f"{CALL}clock{SEP}{{}}{CALL_END}"

TURNS: dict[str, Turn] = {
    "V3 without spaces": (f"{CALLS}{V3}{V3}{CALLS_END}", call("clock", "{}") * 2),
    "V3.1 with spaces": (f"{CALLS}\n{V31}\n{V31}\n{CALLS_END}", call("clock", "{}") * 2),
    "without the block": (
        f"So.\n{V31}{V3} ok",
        [text("So."), *call("clock", "{}") * 2, text("ok")],
    ),
    "without a fence": (f"{CALL}function{SEP}clock\n{{}}{CALL_END}", call("clock", "{}")),
    "two blocks": (f"{CALLS}{V31}{CALLS_END}{CALLS}{V31}{CALLS_END}", call("clock", "{}") * 2),
    "broken arguments": (
        f"{CALLS}{CALL}clock{SEP}{{a}}{CALL_END}{V31}{CALLS_END}",
        [*call("clock", "{}"), text('"a"}'), *call("clock", "{}")],
    ),
    "no arguments": (
        f"{CALLS}{CALL}clock{SEP}{CALL_END}{CALL}function{SEP}clock\n```json\nnull\n```{CALL_END},"
        f"{CALL}function{SEP}clock\n```json\n```{CALL_END}{CALLS_END}",
        call("clock", "{}") * 3,
    ),
    "a brace too many": (
        f"{CALL}function{SEP}clock\n```json\n{{}}}}\n```{CALL_END}{CALLS_END}",
        call("clock", "{}"),
    ),
    "ended in arguments": (f'{CALL}clock{SEP}{{"a": [1', call("clock", '{"a": [1]}')),
    "a fence in arguments": (
        f'{CALL}function{SEP}clock\n```json\n{{"a": "```"}}\n```{CALL_END}',
        call("clock", '{"a": "```"}'),
    ),
}
AS_TEXT = {
    "an empty block": f"{CALLS}{CALLS_END}",
    "no separator": f"a {CALLS}{CALL}clock{CALL_END}",
    "no object": f"{CALL}clock{SEP}now{CALL_END}",
    "look-alikes": "<|tool\u2581calls\u2581begin|> <\uff5ctool <\uff5ctool\u2581call\u2581",
}


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
@pytest.mark.parametrize("made", [DeepSeekV3Format, DeepSeekV31Format])
def test_calls_are_read(made: type[DeepSeekV3Format | DeepSeekV31Format], turn: Turn) -> None:
    check(lambda: made().parser(TOOLS), turn)


@pytest.mark.parametrize("written", AS_TEXT.values(), ids=AS_TEXT)
def test_what_is_no_call_is_text(written: str) -> None:
    check(lambda: DeepSeekV3Format().parser(TOOLS), (written, [text(written)]))


def test_calls_after_reasoning_that_the_prompt_opened() -> None:
    def made() -> TurnParser:
        return THINK.parser(lambda: DeepSeekV31Format().parser(TOOLS), is_open=True)

    turn = f"Hm.\n</think>\n\n{CALLS}{V31}{CALLS_END}"
    check(made, (turn, [thought("Hm."), *call("clock", "{}")]))
