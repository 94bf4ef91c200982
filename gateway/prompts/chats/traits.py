"""The traits of a chat template's input, found once by rendering small chats."""

from typing import Literal

from msgspec import Struct

ReasoningField = Literal[
    "reasoning_content", "thinking", "reasoning", "thought", "tool_plan", "part"
]


class TemplateTraits(Struct, frozen=True):
    """The traits that a chat must have for a template to show it whole and in order.

    The defaults are those of a template that takes any chat as it is.
    """

    # Whether a message's texts are given as a list of parts, each part with its type.
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
    # How many calls a message may have; `text`: calls are shown only in the message's text.
    calls: Literal["several", "one", "text"] = "several"
    arguments: Literal["object", "text"] = "object"
    null_content: bool = False  # content None, not "", in messages of calls alone
    # Where the text of a message with calls stands: beside the calls, in a message before them, or
    # at the end of the reasoning (and in a message once the turn is over: templates then drop
    # reasoning).
    text_beside_calls: Literal["together", "thought", "apart"] = "together"
    # The field of the assistant's reasoning; `part`: a part in a list of content.
    reasoning: ReasoningField = "reasoning_content"
    empty_answers: bool = True  # empty messages of the assistant
    no_tools: Literal["null", "list"] = "null"  # the template's `tools` where there are no tools
    shows_tools: bool = True
    tools_need_system: bool = False  # tools are shown only beside a system message
    # The empty fields that are added to tools without them: a description; also parameters; or also
    # the description of each parameter.
    completed_tools: Literal["as_sent", "described", "whole", "deep"] = "as_sent"
    shows_call_ids: bool = False  # each result names its call, so results may come in any order
    short_ids: bool = False  # call ids must have nine letters or digits
    # Call ids must be `functions.NAME:NUMBER`, counted in the chat or in each turn.
    numbered_ids: Literal["no", "chat", "turn"] = "no"
