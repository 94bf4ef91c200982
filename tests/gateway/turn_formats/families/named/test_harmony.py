from __future__ import annotations

import msgspec
import pytest

from engine.link.messages import Grammar
from gateway.prompts.answer_forms import AnswerForms
from gateway.prompts.generation_request import AnswerForm
from gateway.turn_formats.families.named.harmony import HarmonyFormat
from gateway.turn_formats.pieces import CallStarted, Piece
from tests.gateway.turn_formats.grammars import Bytes
from tests.gateway.turn_formats.turns import TOOLS, Turn, call, check, read, text, thought

HM = "<|channel|>analysis<|message|>Hm.\n<|end|>"
NEXT = "<|start|>assistant"
TIME = "<|channel|>commentary to=functions.clock <|constrain|>json<|message|>{}<|call|>"

TURNS: dict[str, Turn] = {
    "reasoning and an answer": (
        f"{HM}{NEXT}<|channel|>final<|message|> It is\ncold. <|return|>",
        [thought("Hm.\n"), text(" It is\ncold. ")],
    ),
    "reasoning and a call": (f"{HM}{NEXT}{TIME}", [thought("Hm.\n"), *call("clock", "{}")]),
    "a preamble and a call": (
        f"<|channel|>commentary<|message|>Let me see.<|end|>{NEXT}{TIME}",
        [text("Let me see."), *call("clock", "{}")],
    ),
    "the recipient first": (
        ' to=functions.clock<|channel|>commentary <|constrain|>json<|message|>{"a": 1}<|call|>',
        call("clock", '{"a": 1}'),
    ),
    "the recipient after the role": (
        f"{HM}{NEXT} to=functions.clock<|channel|>commentary json<|message|>{{}}<|call|>",
        [thought("Hm.\n"), *call("clock", "{}")],
    ),
    "a call among thoughts": (
        "<|channel|>analysis to=functions.clock<|message|>{}<|call|>",
        call("clock", "{}"),
    ),
    "no arguments at all": (
        "<|channel|>commentary to=functions.clock<|message|><|call|>",
        call("clock", "{}"),
    ),
    "no arguments, ended": (
        "<|channel|>commentary to=functions.clock <|constrain|>json<|message|>",
        call("clock", "{}"),
    ),
    "no arguments, said so": (
        "<|channel|>commentary to=functions.clock json<|message|>null<|call|>",
        call("clock", "{}"),
    ),
    "a head alone": (
        f"{HM}{NEXT} to=functions.clock<|channel|>commentary",
        [thought("Hm.\n"), *call("clock", "{}")],
    ),
    "a head that is called": (
        "<|channel|>commentary to=functions.clock <|constrain|>json<|call|>",
        call("clock", "{}"),
    ),
    "no namespace": (
        f"{HM}{NEXT}<|channel|>commentary to=clock <|constrain|>json<|message|>{{}}",
        [thought("Hm.\n"), *call("clock", "{}")],
    ),
    "no channel": ("<|message|>Hello<|end|>", [text("Hello")]),
    "no channel, but a recipient": (" to=clock<|message|>{}<|call|>", call("clock", "{}")),
    "a head that says nothing": ("<|channel|>final<|end|>", []),
    "a recipient that is no tool": (
        f"<|channel|>commentary to=assistant<|channel|>analysis<|message|>Hm.\n<|end|>{NEXT}"
        "<|channel|>commentary to=user<|channel|>final<|message|>Yes",
        [thought("Hm.\n"), text("Yes")],
    ),
    "a text in a head": (
        f'{HM}{NEXT}<|channel|>final <|constrain|>json {{"a": 1}}<|return|>',
        [thought("Hm.\n"), text('{"a": 1}')],
    ),
    "ended in a head": (
        f"{HM}{NEXT}<|channel|>fi",
        [thought("Hm.\n"), text("<|start|>assistant<|channel|>fi")],
    ),
    "a brace too many": (f"{TIME.removesuffix('<|call|>')}}}<|call|>", call("clock", "{}")),
    "broken arguments": (
        f"<|channel|>commentary to=functions.clock<|message|>{{a}}<|call|>{NEXT}{TIME}",
        [*call("clock", "{}"), text('"a"}'), *call("clock", "{}")],
    ),
    "begun by the prompt": ("cold.<|return|>", [text("cold.")]),
    "an end that is forgotten": (
        "<|channel|>analysis<|message|>Hm.<|start|>assistant<|channel|>final<|message|>Yes",
        [thought("Hm."), text("Yes")],
    ),
    "cut off in a thought": ("<|channel|>analysis<|message|>Hm <", [thought("Hm <")]),
    "ended in arguments": (TIME[:-9], call("clock", "{}")),
    "nothing said": ("<|channel|>final<|message|><|return|>", []),
    "look-alikes": (
        "<|channel|>final<|message|><|chan> <|end| to=functions.clock {}",
        [text("<|chan> <|end| to=functions.clock {}")],
    ),
}
AS_TEXT = {
    "an unknown tool": "<|channel|>commentary to=functions.rm<|message|>{}<|call|>",
    "a builtin tool": "<|channel|>analysis to=python code<|message|>print()<|call|>",
    "an unknown channel": "<|channel|>aside<|message|>x<|end|>",
    "no object": "<|channel|>commentary to=functions.clock<|message|>now<|call|>",
    "a head alone": "<|channel|>commentary to=functions.clo",
    "a long head": f"<|channel|>{'x' * 3000}",
}


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
def test_messages_are_read(turn: Turn) -> None:
    check(lambda: HarmonyFormat().parser(TOOLS), turn)


def test_a_turn_that_is_cut_off_shows_nothing_of_a_head() -> None:
    turn = f"{HM}{NEXT}<|channel|>commentary<|message|>So.<|end|>{NEXT}{TIME}"
    seen = set()
    for end in range(len(turn)):
        pieces = read(HarmonyFormat().parser(TOOLS), [turn[:end]], is_cut=True)
        shown = "".join(piece.text for piece in pieces if not isinstance(piece, CallStarted))
        seen.add(shown)
        assert "Hm.\nSo.{}".startswith(shown)
    assert {"", "Hm.\n", "Hm.\nSo.", "Hm.\nSo.{"} <= seen


@pytest.mark.parametrize("written", AS_TEXT.values(), ids=AS_TEXT)
def test_a_message_that_is_not_known_is_text(written: str) -> None:
    check(lambda: HarmonyFormat().parser(TOOLS), (written, [text(written)]))


FINAL = "<|channel|>final<|message|>"
ASKED = Grammar(
    "json_schema", '{"type": "object", "properties": {}, "additionalProperties": false}'
)
ASKED_AS_PART = msgspec.json.encode(ASKED).decode()
SAID = {
    f"{FINAL}{{}}": True,
    f"{HM}{NEXT}{FINAL}{{}}": True,
    f"{HM}{NEXT}{HM}{NEXT}{FINAL}{{}}": True,
    f"{FINAL}cold": False,
    f"{FINAL}{{}} cold": False,
    f"{HM}{NEXT}{{}}": False,
    "{}": False,  # a message without a channel
    "<|channel|>commentary<|message|>{}": False,
}


@pytest.mark.parametrize("special", [(), HarmonyFormat.markers], ids=["characters", "tokens"])
@pytest.mark.parametrize("calls", [False, True], ids=["alone", "with tools"])
def test_what_must_follow_a_grammar_is_said_on_the_final_channel(
    special: tuple[str, ...], calls: bool
) -> None:
    llguidance = pytest.importorskip("llguidance")
    vocabulary = Bytes(llguidance, special)
    tokens = vocabulary.special_tokens
    forms = AnswerForms(HarmonyFormat(tokens), None, tokens)
    form = AnswerForm(tools=tuple(TOOLS) if calls else (), text=ASKED, text_param="x")
    grammar = forms.grammar(form, f"<|start|>user<|message|>Hi<|end|>{NEXT}")
    assert grammar is not None
    lark = grammar.text.replace("%grammar " + ASKED_AS_PART, "%json " + ASKED.text)
    for written, is_accepted in SAID.items():
        assert vocabulary.accepts(lark, written) == is_accepted, written
    assert vocabulary.accepts(lark, TIME) == calls


def test_within_a_message_that_the_prompt_began_nothing_is_put_around() -> None:
    forms = AnswerForms(HarmonyFormat())
    form = AnswerForm(text=ASKED, text_param="x")
    assert forms.grammar(form, f"{NEXT}{FINAL}It is") == ASKED
    assert forms.grammar(form, None) == ASKED  # no chat form is given
    assert forms.grammar(form, NEXT) != ASKED


BEGUN = f"<|start|>user<|message|>hi<|end|>{NEXT}"
THINKING, SAYING = f"{BEGUN}<|channel|>analysis<|message|>", f"{BEGUN}{FINAL}"


@pytest.mark.parametrize(
    ("prompt", "prefill", "written", "pieces"),
    [
        (THINKING, "So", f" it is.<|end|>{NEXT}{FINAL}Blue", [thought(" it is."), text("Blue")]),
        (THINKING, "", "So", [thought("So")]),
        (SAYING, "Bl", "ue", [text("ue")]),
        (BEGUN, "", HM, [thought("Hm.\n")]),
        (f"{BEGUN}{HM}{NEXT}{FINAL}", "", "Blue", [text("Blue")]),
    ],
)
def test_what_goes_on_is_of_the_channel_that_the_prompt_opened(
    prompt: str, prefill: str, written: str, pieces: list[Piece]
) -> None:
    make = AnswerForms(HarmonyFormat()).parser(AnswerForm(), prompt, prefill)
    assert make is not None
    assert read(make(), list(written)) == pieces


@pytest.mark.parametrize("special", [(), HarmonyFormat.markers], ids=["characters", "tokens"])
@pytest.mark.parametrize("must_call", [True, False])
def test_a_grammar_holds_what_follows_a_thought_that_goes_on(
    special: tuple[str, ...], must_call: bool
) -> None:
    vocabulary = Bytes(pytest.importorskip("llguidance"), special)
    tokens = vocabulary.special_tokens
    forms = AnswerForms(HarmonyFormat(tokens), None, tokens)
    form = AnswerForm(text=ASKED, text_param="x")
    if must_call:
        form = AnswerForm(tools=tuple(TOOLS), least_calls=1)
    grammar = forms.grammar(form, THINKING, "So")
    assert grammar is not None
    lark = grammar.text.replace("%grammar " + ASKED_AS_PART, "%json " + ASKED.text)
    right, wrong = (TIME, f"{FINAL}{{}}") if must_call else (f"{FINAL}{{}}", TIME)
    for begins in (f" it is.<|end|>{NEXT}", f" it is.<|end|>{NEXT}{HM}{NEXT}"):
        assert vocabulary.accepts(lark, begins + right)
        assert not vocabulary.accepts(lark, begins + wrong)
    assert not vocabulary.accepts(lark, right)
