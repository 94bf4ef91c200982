"""A prompt repeats a remembered turn's tokens only if everything before the turn is unchanged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import msgspec
import numpy as np
import pytest

from gateway.config import Bounds
from gateway.errors import BadRequest
from gateway.processes.fair_executor import INLINE_SIZE
from gateway.prompts.answer_forms import AnswerForms
from gateway.prompts.chats.messages import Message, Reasoning, Text
from gateway.prompts.generation_request import ChatPrompt
from gateway.prompts.tokens.control_tokens import Rendered
from gateway.prompts.tokens.splicing import SplicedChat
from gateway.prompts.tokens.tokenizer import TokenIds
from gateway.prompts.verbatim_turns.history import Render
from gateway.prompts.verbatim_turns.turn_memory import TurnMemory
from gateway.prompts.verbatim_turns.verbatim import VerbatimTurns
from gateway.turn_formats.pieces import TextPiece
from tests.gateway.support.families import FAMILIES, Family
from tests.gateway.support.manual_clock import ManualClock

ANSWER = "The quick brown fox"


class Scene:
    """A model, and the stored answers to one tenant."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.clock = ManualClock()
        forms = AnswerForms.of(family.template, family.ours, None)
        self.turns = VerbatimTurns(TurnMemory(Bounds(), self.clock), forms, family.ours)
        self.ends = [family.id_of(family.end)]

    def render(self, chat: ChatPrompt) -> Rendered:
        return self.family.template.render(
            chat.messages,
            add_generation_prompt=chat.add_generation_prompt,
            variables=chat.variables,
        )

    def spliced(self, chat: ChatPrompt, render: Render | None = None) -> SplicedChat:
        keys = self.turns.keys(chat, "ada", b"own")
        assert keys is not None
        return self.turns.spliced(chat, keys, render or self.render, self.ends)

    def answer(self, chat: ChatPrompt, text: str = ANSWER) -> list[int]:
        """Let the model answer `chat`, letter by letter."""
        encode = partial(self.family.ours.encode, add_special_tokens=False)
        keys, prompt = self.turns.keys(chat, "ada", b"own"), self.spliced(chat)
        assert keys is not None
        parts: list[TokenIds] = [
            encode(part) if isinstance(part, Rendered) else part for part in prompt.parts()
        ]
        origin = self.turns.origin(chat, keys, prompt, np.concatenate(parts))
        assert origin is not None
        ids = [int(one) for letter in text for one in encode(Rendered((letter,)))]
        self.turns.remember(origin, [TextPiece(text)], ids)
        return ids


@pytest.fixture(params=["qwen2", "qwen3", "llama3", "mistral", "mistral-legacy", "handbook"])
def scene(request: pytest.FixtureRequest) -> Scene:
    return Scene(FAMILIES[request.param]())


def user(text: str = "fox") -> Message:
    return Message("user", (Text(text),))


def after(chat: ChatPrompt, answer: str = ANSWER) -> ChatPrompt:
    """Make the chat's next request, after the answer."""
    turn = Message("assistant", (Text(answer),))
    return ChatPrompt((*chat.messages, turn, user("And?")))


FIRST = ChatPrompt((user(),))


def test_every_answer_of_a_chat_is_put_back(scene: Scene) -> None:
    first = scene.answer(FIRST)
    second = scene.answer(after(FIRST))
    found = scene.spliced(after(after(FIRST)))
    assert [splice.token_ids.tolist() for splice in found.splices] == [first, second]
    assert "".join(scene_text(found)) == scene.render(after(after(FIRST))).text


def test_a_chat_weighs_what_is_remembered_of_it(scene: Scene) -> None:
    """Count remembered thoughts as work.

    A client that drops thoughts sends little, but the prompt contains the thoughts all the same.
    """
    keys = scene.turns.keys(after(FIRST), "ada", b"own")
    assert keys is not None
    assert scene.turns.size(keys) == 0
    scene.answer(FIRST)
    small = scene.turns.size(keys)
    turn = scene.turns.memory.find("ada", keys.of_turns[1])
    assert turn is not None
    said = msgspec.structs.replace(turn.said, reasoning="x" * 10_000)
    thinking = replace(turn, said=said)
    scene.turns.memory.add("ada", keys.of_turns[1], thinking)
    assert 0 < small < INLINE_SIZE < small + 10_000 == scene.turns.size(keys)


def scene_text(chat: SplicedChat) -> list[str]:
    """Return the chat's text, with answers in place of spliced tokens."""
    return [part.text if isinstance(part, Rendered) else ANSWER for part in chat.parts()]


def test_where_an_earlier_turn_is_forgotten_the_later_ones_are_rendered(scene: Scene) -> None:
    scene.answer(FIRST)
    scene.clock.advance(1000)
    scene.answer(after(FIRST))  # the prompt repeats the first turn
    assert len(scene.spliced(after(after(FIRST))).splices) == 2
    whole = after(after(FIRST))
    keys = scene.turns.keys(whole, "ada", b"own")
    assert keys is not None
    scene.clock.advance(1000)
    scene.turns.memory.use("ada", keys.of_turns[3])
    scene.clock.advance(1000)
    assert scene.turns.memory.find("ada", keys.of_turns[1]) is None
    assert scene.turns.memory.find("ada", keys.of_turns[3]) is not None
    assert scene.spliced(whole) == SplicedChat(scene.render(whole))


def changing(render: Render) -> Render:
    """Make a template that also writes the time."""

    def other(chat: ChatPrompt) -> Rendered:
        first, *rest = render(chat).pieces
        return Rendered((f"{first}12:01", *rest))

    return other


def refusing(render: Render) -> Render:
    """Make a template that refuses reasoning."""

    def other(chat: ChatPrompt) -> Rendered:
        if any(isinstance(part, Reasoning) for one in chat.messages for part in one.parts):
            raise BadRequest("no reasoning here")
        return render(chat)

    return other


def saying(render: Render, answer: str) -> Render:
    """Make a template that writes the answer as `answer`."""

    def other(chat: ChatPrompt) -> Rendered:
        return Rendered(tuple(one.replace(ANSWER, answer) for one in render(chat).pieces))

    return other


@pytest.mark.parametrize(("written", "turns"), [(f"{ANSWER} ", 1), ("another", 0)])
def test_a_turn_that_was_put_back_is_compared_again_where_it_is_written_anew(
    scene: Scene, written: str, turns: int
) -> None:
    scene.answer(FIRST)
    for _ in range(2):  # the second time, the first comparison's result is found again
        assert len(scene.spliced(after(FIRST)).splices) == 1
    assert len(scene.spliced(after(FIRST), saying(scene.render, written)).splices) == turns


@pytest.mark.parametrize(("change", "turns"), [(changing, 0), (refusing, 1)])
def test_all_before_a_turn_must_be_rendered_as_it_was(
    scene: Scene, change: Callable[[Render], Render], turns: int
) -> None:
    scene.answer(FIRST)
    assert len(scene.spliced(after(FIRST)).splices) == 1
    render = change(scene.render)
    found = scene.spliced(after(FIRST), render)
    assert len(found.splices) == turns
    assert found.rendered == render(after(FIRST))


def test_an_answer_that_the_template_trims_says_the_same(scene: Scene) -> None:
    ids = scene.answer(FIRST, f"{ANSWER}\n")
    for given in (f"{ANSWER}\n", ANSWER):
        [splice] = scene.spliced(after(FIRST, given)).splices
        assert splice.token_ids.tolist() == ids


def test_characters_that_were_cut_off_are_not_put_back(scene: Scene) -> None:
    scene.answer(FIRST, f"{ANSWER}\N{REPLACEMENT CHARACTER}")
    chat = after(FIRST, f"{ANSWER}\N{REPLACEMENT CHARACTER}")
    assert not scene.spliced(chat).splices


def test_an_answer_to_a_turn_that_goes_on_is_not_remembered(scene: Scene) -> None:
    chat = ChatPrompt((user(),), add_generation_prompt=False)
    keys = scene.turns.keys(chat, "ada", b"own")
    assert keys is not None
    prompt = scene.spliced(chat)
    assert scene.turns.origin(chat, keys, prompt, np.zeros(4, np.int32)) is None
