"""Generated tokens stand in a prompt between the texts that the template has around the turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gateway.prompts.chats.messages import Message, Part, Reasoning, Text, ToolCall, ToolResult
from gateway.prompts.generation_request import ChatPrompt
from gateway.prompts.tokens.control_tokens import Rendered
from gateway.prompts.tokens.splicing import Place, end_of
from gateway.prompts.verbatim_turns.history import Marks, Render, continued
from gateway.prompts.verbatim_turns.said import Said
from gateway.prompts.verbatim_turns.turn_memory import GeneratedTurn

MARKS = Marks(frozenset({"</s>"}), frozenset({"<call>", "</call>"}), end_of)
TURN = GeneratedTurn(
    begin=Place(0, 0),
    before=b"",
    token_ids=np.array([3, 4], np.int32),
    said=Said("", "It rains.", (), ("text",)),
    last_marker=None,
    since=np.array([1, 2], np.int32),
)
CALL = ToolCall("weather", {"city": "Oslo"})
# a message as written by a template: texts and control tokens alternate
Written = Callable[[Message], tuple[str, ...]]


def written(message: Message) -> tuple[str, ...]:
    texts: list[str] = []
    for part in message.parts:
        match part:
            case Text(text) | ToolResult(text) | Reasoning(text):
                texts.append(text)
            case ToolCall(_, arguments):
                return ("".join(texts), "<call>", str(arguments), "</call>", "", "</s>", "")
    return ("".join(texts), "</s>", "")


def counting(of: Written = written) -> Render:
    """Make a template that begins with the number of messages, so that no chat is a prefix of
    another.
    """

    def render(chat: ChatPrompt) -> Rendered:
        rendered = Rendered(("", "<s>", str(len(chat.messages))))
        for message in chat.messages:
            rendered = rendered.followed(Rendered(("", f"<{message.role}>", "")))
            rendered = rendered.followed(Rendered(of(message)))
        return rendered

    return render


def chat(*parts: Part, then: str = "And now?") -> ChatPrompt:
    """Make a question, a turn of `parts`, and the text `then`: a question, or the result of the
    turn's call.
    """
    is_call = isinstance(parts[-1], ToolCall)
    next_one = Message("tool", (ToolResult(then, "1"),)) if is_call else user(then)
    return ChatPrompt(messages=(user("So?"), Message("assistant", parts), next_one))


def user(text: str) -> Message:
    return Message("user", (Text(text),))


def rest(prompt: ChatPrompt, render: Render) -> tuple[str, ...] | None:
    """Return the pieces after the turn's generated tokens; None if the prompt does not repeat
    them.
    """
    found = continued(prompt, {1: b"key"}, lambda key: TURN, render, MARKS)
    if found is None:
        return None
    _, known, after = found.parts()
    assert isinstance(known, np.ndarray)
    assert isinstance(after, Rendered)
    assert known.tolist() == [1, 2, 3, 4]
    return tuple(after.pieces)


@pytest.mark.parametrize(
    ("parts", "role"),
    [((Text("It rains."),), "user"), ((Text("So."), CALL), "tool"), ((CALL,), "tool")],
)
def test_what_follows_the_turn_is_what_the_template_has_after_it(parts: Any, role: str) -> None:
    assert rest(chat(*parts), counting()) == ("", "</s>", "", f"<{role}>", "And now?", "</s>", "")


def test_a_turn_that_no_token_ends_ends_before_the_next_message() -> None:
    def without_end(message: Message) -> tuple[str, ...]:
        return written(message)[:-2] if message.role == "assistant" else written(message)

    found = rest(chat(CALL), counting(without_end))
    assert found == ("", "<tool>", "And now?", "</s>", "")


def test_a_turn_that_the_template_does_not_show_is_not_put_back() -> None:
    def silent(message: Message) -> tuple[str, ...]:
        return ("",) if message.role == "assistant" else written(message)

    assert rest(chat(Text("It rains.")), counting(silent)) is None


def test_a_message_that_the_template_has_before_the_turn_is_not_lost() -> None:
    def first_what_followed(prompt: ChatPrompt) -> Rendered:
        if len(prompt.messages) < 3:
            return counting()(prompt)
        *messages, turn, last = prompt.messages
        return counting()(ChatPrompt(messages=(*messages, last, turn)))

    assert rest(chat(Text("It rains.")), first_what_followed) is None
    assert rest(chat(Text("It rains.")), counting()) is not None
