"""The traits by which a chat template takes messages, found once by rendering small chats."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

ReasoningField = Literal[
    "reasoning_content", "thinking", "reasoning", "thought", "tool_plan", "part"
]


class TemplateTraits(Struct, frozen=True):
    """The properties of chats of which a template shows all, in order.

    The defaults are those of a template that takes any chat as it is.
    """

    # Whether texts are given as a list of parts, of which each says its type.
    content_parts: bool = False
    # Messages of the system at the beginning: any number, one, or none at all.
    leading_system: Literal["several", "one", "none"] = "several"
    later_system: bool = True  # one inside the conversation, in its place
    users_in_a_row: bool = True
    assistants_in_a_row: bool = True
    assistant_first: bool = True
    system_alone: bool = True  # a chat in which nobody else says anything
    user_after_result: bool = True
    results: bool = True  # messages of the role `tool`
    # In a message; `text`: no call is shown, but in the text of the message.
    calls: Literal["several", "one", "text"] = "several"
    arguments: Literal["object", "text"] = "object"
    null_content: bool = False  # None, not "", where there are calls alone
    # A message's text beside its calls: with them, before them in a message of its own, or at the
    # end of its reasoning (which templates drop once the turn is over: then as a message, too).
    text_beside_calls: Literal["together", "thought", "apart"] = "together"
    # The field of what the assistant thought; `part`: the content is a list with a part for it.
    reasoning: ReasoningField = "reasoning_content"
    empty_answers: bool = True  # a message of the assistant that says nothing
    no_tools: Literal["null", "list"] = "null"  # given to the template where there are no tools
    shows_tools: bool = True
    # What tools that lack it are given: a description, or parameters as well; both are empty.
    completed_tools: Literal["as_sent", "described", "whole"] = "as_sent"
    shows_call_ids: bool = False  # so that results may come in any order
    short_ids: bool = False  # calls need ids of nine letters or digits
