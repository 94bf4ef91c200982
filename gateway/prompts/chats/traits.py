"""The traits of the input that a chat template takes, found once by rendering small chats."""

from typing import Literal

from msgspec import Struct

ReasoningField = Literal[
    "reasoning_content", "thinking", "reasoning", "thought", "tool_plan", "part"
]


class TemplateTraits(Struct, frozen=True):
    """The traits of a chat template that decide which chats it shows whole and in order.

    The defaults describe a template that takes any chat.
    """

    # Whether the template takes a message's texts as a list of parts, each part with its type.
    content_parts: bool = False
    # How many system messages a chat may begin with: any number, one, or none.
    leading_system: Literal["several", "one", "none"] = "several"
    # whether system messages inside the conversation are shown in their place
    later_system: bool = True
    users_in_a_row: bool = True
    assistants_in_a_row: bool = True
    assistant_first: bool = True
    # whether calls may come before all user's turns
    calls_first: bool = True
    system_alone: bool = True
    user_after_result: bool = True
    results: bool = True
    # How many calls a message may have. `text`: calls are shown only in the message's text.
    calls: Literal["several", "one", "text"] = "several"
    arguments: Literal["object", "text"] = "object"
    # whether messages of calls alone have the content None instead of ""
    null_content: bool = False
    # Where the text of a message with calls stands. `together`: beside the calls. `apart`: in a
    # message before the calls. `thought`: at the end of the reasoning. Since templates drop
    # reasoning once the turn is over, the text then also stands in a message.
    text_beside_calls: Literal["together", "thought", "apart"] = "together"
    # The message's field for the assistant's reasoning. `part`: a part in the list of content.
    reasoning: ReasoningField = "reasoning_content"
    empty_answers: bool = True
    # value of the template's variable `tools` without tools
    no_tools: Literal["null", "list"] = "null"
    shows_tools: bool = True
    tools_need_system: bool = False
    # The input that takes the tools: a variable of this name, or the field `tools` of the system
    # message, which is the JSON of their functions.
    tools_in: Literal["tools", "xml_tools", "system"] = "tools"
    # The empty fields that are added to tools. `described`: a description. `whole`: parameters too.
    # `deep`: also a description of each parameter; and the type `null` is left out.
    completed_tools: Literal["as_sent", "described", "whole", "deep"] = "as_sent"
    # whether each shown result names its call, so that results may come in any order
    shows_call_ids: bool = False
    short_ids: bool = False  # whether call ids must have nine letters or digits
    # Call ids must be `functions.NAME:NUMBER`, counted in the chat or in each turn.
    numbered_ids: Literal["no", "chat", "turn"] = "no"
