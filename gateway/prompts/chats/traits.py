"""The traits of a chat template's input, found once by rendering small chats."""

from typing import Literal

from msgspec import Struct

ReasoningField = Literal[
    "reasoning_content", "thinking", "reasoning", "thought", "tool_plan", "part"
]


class TemplateTraits(Struct, frozen=True):
    """The traits of chats that a template shows whole and in order.

    The defaults are those of a template that takes any chat as it is.
    """

    # Whether texts are given as a list of parts, each with its type.
    content_parts: bool = False
    # System messages at the beginning: any number, one, or none.
    leading_system: Literal["several", "one", "none"] = "several"
    later_system: bool = True  # system messages inside the conversation, in place
    users_in_a_row: bool = True
    assistants_in_a_row: bool = True
    assistant_first: bool = True
    system_alone: bool = True  # a chat of system messages alone
    user_after_result: bool = True
    results: bool = True  # messages of the role `tool`
    # The field of calls in a message; `text`: calls are shown only in the message's text.
    calls: Literal["several", "one", "text"] = "several"
    arguments: Literal["object", "text"] = "object"
    null_content: bool = False  # content None, not "", in messages of calls alone
    # A message's text beside its calls: with them, before them in a message of its own, or at the
    # end of its reasoning (which templates drop once the turn is over: then as a message, too).
    text_beside_calls: Literal["together", "thought", "apart"] = "together"
    # The field of the assistant's reasoning; `part`: a part in a list of content.
    reasoning: ReasoningField = "reasoning_content"
    empty_answers: bool = True  # empty messages of the assistant
    no_tools: Literal["null", "list"] = "null"  # the template's `tools` where there are no tools
    shows_tools: bool = True
    tools_need_system: bool = False  # tools are shown only beside a system message
    # The fields that tools are given if missing, all empty: a description; parameters, too; or
    # what describes each parameter as well.
    completed_tools: Literal["as_sent", "described", "whole", "deep"] = "as_sent"
    shows_call_ids: bool = False  # each result names its call, so results may come in any order
    short_ids: bool = False  # call ids must have nine letters or digits
    # Call ids must be `functions.NAME:NUMBER`, counted in the chat or in each turn.
    numbered_ids: Literal["no", "chat", "turn"] = "no"
