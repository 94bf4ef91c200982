from __future__ import annotations

import pytest

from gateway.turn_formats.families.objects.hermes import HermesFormat
from gateway.turn_formats.reading import TurnReader
from gateway.turn_formats.reasoning import GEMMA, MAGISTRAL, SOLAR, THINK, ReasoningFormat
from gateway.turn_formats.turn_format import TurnParser
from tests.gateway.turn_formats.grammars import Bytes
from tests.gateway.turn_formats.turns import TOOLS, Turn, call, check, text, thought

MARKS = HermesFormat.call_marks
CALL = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'

FROM_OUTSIDE: dict[str, Turn] = {
    "empty": ("", []),
    "none": ("It is cold. </think>", [text("It is cold. </think>")]),
    "space": (" \n", [text(" \n")]),
    "reasoning": ("<think>\nHm.\n\nSo.\n</think>\n\nCold.", [thought("Hm.\n\nSo."), text("Cold.")]),
    "nothing thought": ("<think>\n\n</think>\n\nCold.", [text("Cold.")]),
    "space before": ("\n<think>a</think>b", [thought("a"), text("b")]),
    "none, as the model says": ("</think>\n\nCold.", [text("Cold.")]),
    "later": ("a <think>b</think>", [text("a <think>b</think>")]),
    "begun": ("<thi", [text("<thi")]),
    "ended": ("<think>\nHm. \n</thi", [thought("Hm. \n</thi")]),
    "a call after it": (f"<think>\na\n</think>\n\n{CALL}", [thought("a"), *call("clock", "{}")]),
    "a call within it": (f"<think>{CALL}</think>b", [thought(CALL), text("b")]),
    "a call at its end": (
        f"<think>\na <tool_call> or \n{CALL}\n{CALL}\n",
        [thought("a <tool_call> or"), *call("clock", "{}"), *call("clock", "{}")],
    ),
    "a call before its end": (f"<think>{CALL}\n</think>\n", call("clock", "{}")),
    "a call that is not closed": (f"<think>a{CALL[:-12]}", [thought("a"), *call("clock", "{}")]),
    "calls, and a thought": (
        f"<think>{CALL}{CALL} no, {CALL} no</think>",
        [thought(f"{CALL}{CALL} no, {CALL} no")],
    ),
    "calls, a thought, and a call": (
        f"<think>{CALL}{CALL} no, \n{CALL}",
        [thought(f"{CALL}{CALL} no,"), *call("clock", "{}")],
    ),
    "a call of an unknown tool": (
        f"<think>{CALL.replace('clock', 'rm')}",
        [thought(CALL.replace("clock", "rm"))],
    ),
    "two": ("<think>a</think><think>b</think>", [thought("a"), text("<think>b</think>")]),
}
FROM_WITHIN: dict[str, Turn] = {
    "reasoning": ("Hm.\n</think>\n\nCold.", [thought("Hm."), text("Cold.")]),
    "a call": (f"\nHm.\n</think>\n\n{CALL}", [thought("Hm."), *call("clock", "{}")]),
    "opened again": ("<think>\nHm.\n</think>\n\nCold.", [thought("Hm."), text("Cold.")]),
    "ended": ("Hm. <", [thought("Hm. <")]),
    "a call that is not known yet": (
        f"Hm.\n{CALL}\n<tool_call>\n",
        [thought(f"Hm.\n{CALL}\n<tool_call>\n")],
    ),
    "empty": ("", []),
    "no answer": ("Hm.\n</think>\n\n", [thought("Hm.")]),
}


def parser(*, is_open: bool) -> TurnParser:
    return THINK.parser(lambda: HermesFormat().parser(TOOLS), is_open=is_open, calls=MARKS)


@pytest.mark.parametrize("turn", FROM_OUTSIDE.values(), ids=FROM_OUTSIDE)
def test_reasoning_is_read(turn: Turn) -> None:
    check(lambda: parser(is_open=False), turn)


@pytest.mark.parametrize("turn", FROM_WITHIN.values(), ids=FROM_WITHIN)
def test_reasoning_that_the_prompt_opened_is_read(turn: Turn) -> None:
    check(lambda: parser(is_open=True), turn)


CUT: dict[str, Turn] = {
    "in the mark": ("Hm.\n</thi", [thought("Hm.")]),
    "after it": ("Hm.\n</think>\n\n", [thought("Hm.")]),
    "in a call": (f"Hm.\n{CALL[:-5]}", [thought(f"Hm.\n{CALL[:-5]}")]),
    "after a call and the mark": (f"{CALL}</think>", [thought(CALL)]),
    "in a call after it": (f"</think>{CALL[:-15]}", call("clock", "{")),
}


@pytest.mark.parametrize("turn", CUT.values(), ids=CUT)
def test_reasoning_may_be_cut_off(turn: Turn) -> None:
    check(lambda: parser(is_open=True), turn, is_cut=True)


def test_without_tools_a_call_within_is_thought() -> None:
    def made() -> TurnParser:
        return THINK.parser(TurnReader, is_open=True)

    check(made, (f"a {CALL}", [thought(f"a {CALL}")]))


@pytest.mark.parametrize(
    ("marks", "written"),
    [(MAGISTRAL, "[THINK]a[/THINK]b"), (GEMMA, "<|channel>thought\na\n<channel|>b")],
)
def test_other_marks(marks: ReasoningFormat, written: str) -> None:
    def made() -> TurnParser:
        return marks.parser(TurnReader, is_open=False)

    check(made, (written, [thought("a"), text("b")]))


CHANNEL, CHANNEL_END = "<|channel>thought\n", "<channel|>"
IN_CHANNELS: dict[str, Turn] = {  # reasoning as Gemma 4 writes it
    "a stray end": (f"{CHANNEL}{CHANNEL_END}Cold.{CHANNEL_END}", [text("Cold.")]),
    "a second block": (
        f"{CHANNEL}a{CHANNEL_END}Cold. {CHANNEL}b\n{CHANNEL_END} So.",
        [thought("a"), text("Cold."), thought("b"), text("  So.")],
    ),
    "an empty block after the answer": (f"Cold.{CHANNEL}{CHANNEL_END}", [text("Cold.")]),
    "opened twice": (f"<|channel>{CHANNEL}a{CHANNEL_END}Cold.", [thought("a"), text("Cold.")]),
    "without the name": (f"<|channel>a{CHANNEL_END}Cold.", [thought("a"), text("Cold.")]),
    "not closed": (f"Cold.{CHANNEL}a", [text("Cold."), thought("a")]),
    "within a call's arguments": (
        CALL.replace("{}", f'{{"a": "{CHANNEL[:-1]}b{CHANNEL_END}"}}') + f"{CHANNEL}c",
        [*call("clock", f'{{"a": "{CHANNEL[:-1]}b{CHANNEL_END}"}}'), thought("c")],
    ),
    "between calls": (
        f"{CALL}{CHANNEL}a{CHANNEL_END}{CALL}",
        [*call("clock", "{}"), thought("a"), *call("clock", "{}")],
    ),
}


@pytest.mark.parametrize("turn", IN_CHANNELS.values(), ids=IN_CHANNELS)
def test_further_blocks_and_stray_tags_are_in_no_text(turn: Turn) -> None:
    def made() -> TurnParser:
        return GEMMA.parser(lambda: HermesFormat().parser(TOOLS), is_open=False, calls=MARKS)

    check(made, turn)


def test_a_prompt_that_ends_with_the_mark_opened_it() -> None:
    assert THINK.is_open("<|im_start|>assistant\n<think>\n")
    assert THINK.is_open("<\uff5cAssistant\uff5c><think>")
    assert not THINK.is_open("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not THINK.is_open("<|im_start|>assistant\n")


def test_a_prompt_that_ends_with_the_closing_tag_closed_it() -> None:
    assert THINK.is_closed("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert THINK.is_closed("<\uff5cAssistant\uff5c></think>")
    assert THINK.is_closed("<|im_start|>assistant\n<think>\n", "Hm.</think>So")
    assert not THINK.is_closed("<|im_start|>assistant\n<think>\n")
    assert not THINK.is_closed("<|im_start|>assistant\n<think>\n\n</think>\n\n", "<think>Hm")
    assert not THINK.is_closed("</think><|im_end|>\n<|im_start|>assistant\n")


def test_a_tag_that_ends_any_turn_closes_only_what_was_opened() -> None:
    head = "<|begin|>user<|content|>Hi<|end|><|begin|>assistant"
    assert not SOLAR.is_closed(head)
    assert SOLAR.is_closed(f"{head}<|think|><|end|><|begin|>assistant")


@pytest.mark.parametrize("special", [(), ("<think>", "</think>", "<tool_call>", "</tool_call>")])
def test_a_grammar_of_an_answer_may_be_thought_about(special: tuple[str, ...]) -> None:
    vocabulary = Bytes(pytest.importorskip("llguidance"), special)
    answer = HermesFormat(vocabulary.special_tokens).call_grammar(TOOLS)
    within = THINK.before(answer, vocabulary.special_tokens, is_open=True)
    outside = THINK.before(answer, vocabulary.special_tokens, is_open=False)
    assert vocabulary.error(within) == vocabulary.error(outside) == ""
    thinks = f"Hm.\n</think>\n\n{CALL}"
    assert vocabulary.accepts(within, thinks)
    assert vocabulary.accepts(outside, f"<think>\n{thinks}")
    assert vocabulary.accepts(outside, CALL)
    assert not vocabulary.accepts(within, CALL)
    assert not vocabulary.accepts(within, "Hm.\n</think>\n\nCold.")
    assert not vocabulary.accepts(outside, "<think>Hm.\n</think>\n\nCold.")


def test_markers_are_the_tokens_that_a_tokenizer_hides() -> None:
    assert THINK.markers == ("<think>", "</think>")
    assert MAGISTRAL.markers == ("[THINK]", "[/THINK]")
    assert GEMMA.markers == ("<|channel>", "<channel|>"), "without the word after it"
