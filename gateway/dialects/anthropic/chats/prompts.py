"""The conversion of a request's fields into a chat prompt and the form of its answer.

`turns.py` converts the turns, and `reading.py` reads the sampling fields.
"""

import msgspec

from gateway.diagnosis.volatile import without_billing_header
from gateway.dialects.anthropic.chats.answer_form import answer_form
from gateway.dialects.anthropic.chats.shown_turns import effort_of
from gateway.dialects.anthropic.chats.tools import RequestTools
from gateway.dialects.anthropic.chats.turns import messages_of
from gateway.dialects.anthropic.content.blocks import TextBlock
from gateway.dialects.anthropic.schema import PromptRequest
from gateway.errors import BadRequest
from gateway.prompts.chats.chat_json import refuse_unsupported
from gateway.prompts.chats.messages import Message, Text
from gateway.prompts.chats.template_variables import Scalar
from gateway.prompts.generation_request import AnswerForm, ChatPrompt

_THINKS_NOT: dict[str, Scalar] = {"enable_thinking": False}
_NOTHING = (Text(""),)


def chat_prompt(wire: PromptRequest, max_messages: int) -> tuple[ChatPrompt, AnswerForm]:
    """Read the prompt and the form of its answer; raise BadRequest for a wrong field."""
    refuse_unsupported(wire)
    if not wire.messages:
        raise BadRequest("there is nothing to answer", param="messages")
    if len(wire.messages) > max_messages:
        raise BadRequest(f"there are more than {max_messages} messages", param="messages")
    tools = RequestTools.of(wire)
    form = answer_form(wire, tools.in_force)
    messages = [*system_of(wire.system), *messages_of(wire.messages, tools.deferred)]
    if not messages:
        raise BadRequest("there is nothing to answer", param="messages")
    # counted after the conversion, since each tool result of a turn is a message
    if len(messages) > max_messages:
        raise BadRequest(f"there are more than {max_messages} messages", param="messages")
    continues = _continues(messages, last=len(wire.messages) - 1)
    forms = tools.forms()
    prompt = ChatPrompt(
        messages=tuple(messages),
        add_generation_prompt=not continues,
        continue_final_message=continues,
        variables=_variables(wire),
        implied=_THINKS_NOT,
        tools=forms,
        tools_size=0 if forms is None else len(msgspec.json.encode(forms)),
        later_tools=tools.later,
    )
    return prompt, form


def thinking_is_shown(wire: PromptRequest) -> bool:
    """Return whether the answer's thinking blocks carry their text."""
    return wire.thinking is None or wire.thinking.display != "omitted"


def system_of(system: str | list[TextBlock] | None) -> list[Message]:
    """Return the system prompt as a list of one message, or [] for an empty prompt.

    Claude Code's first text begins with a header that names the release. The header differs between
    sessions. If the prompt had the header, sessions could not share cached blocks, so the header is
    left out.
    """
    texts = [system] if isinstance(system, str) else [block.text for block in system or ()]
    said = [(text, without_billing_header(text)) for text in texts]
    text = "\n".join(kept for whole, kept in said if kept or not whole)
    return [Message("system", (Text(text),), param="system")] if text else []


def _continues(messages: list[Message], last: int) -> bool:
    """Remove an empty last turn. Return whether the answer continues the assistant's last turn."""
    if messages[-1].role != "assistant":
        return False
    if messages[-1].parts == _NOTHING:
        messages.pop()
        if not messages:
            raise BadRequest("there is nothing to answer", param="messages")
        return False
    if not all(isinstance(part, Text) for part in messages[-1].parts):
        raise BadRequest(
            "the last turn is the assistant's and has more than text, so it cannot be continued",
            param=f"messages[{last}]",
        )
    return True


def _variables(wire: PromptRequest) -> dict[str, Scalar]:
    variables: dict[str, Scalar] = {}
    if wire.thinking is not None:
        variables["enable_thinking"] = wire.thinking.type not in ("disabled", "between_tools")
    effort = effort_of(wire.messages)
    if effort is None and wire.output_config is not None:
        effort = wire.output_config.effort
    if effort is not None:
        variables["reasoning_effort"] = effort
    return variables
