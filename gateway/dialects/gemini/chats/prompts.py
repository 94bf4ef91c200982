"""The conversion of a request's fields into a chat prompt and the form of its answer.

`turns.py` converts the turns, and `reading.py` reads the sampling fields.
"""

import msgspec

from gateway.dialects.gemini.chats.answer_form import answer_form
from gateway.dialects.gemini.chats.tools import DeclaredTools
from gateway.dialects.gemini.chats.turns import messages_of, system_of
from gateway.dialects.gemini.parts import listed
from gateway.dialects.gemini.schema import GeminiPrompt, GeminiThinking
from gateway.errors import BadRequest
from gateway.prompts.chats.messages import Message, Text
from gateway.prompts.chats.template_variables import Scalar
from gateway.prompts.generation_request import AnswerForm, ChatPrompt

_NOTHING = (Text(""),)


def chat_prompt(
    wire: GeminiPrompt, tools: DeclaredTools, max_messages: int, cached: int = 0
) -> tuple[ChatPrompt, AnswerForm]:
    """Read the prompt and the form of its answer; raise BadRequest for a wrong field.

    The first `cached` contents of `wire` come from a cached content.
    """
    contents = listed(wire.contents)
    if len(contents) > max_messages:
        raise BadRequest(f"there are more than {max_messages} contents", param="contents")
    form = answer_form(wire, tools.specs)
    messages = [*system_of(wire.system_instruction), *messages_of(contents, cached)]
    if len(messages) > max_messages:  # each result of a turn is a message
        raise BadRequest(f"there are more than {max_messages} messages", param="contents")
    continues = _continues(messages)
    if not contents or not messages:
        raise BadRequest("there is nothing to answer", param="contents")
    config = wire.generation_config
    prompt = ChatPrompt(
        messages=tuple(messages),
        add_generation_prompt=not continues,
        continue_final_message=continues,
        variables=_variables(None if config is None else config.thinking_config),
        tools=[*tools.forms] or None,
        tools_size=len(msgspec.json.encode(tools.forms)) if tools.forms else 0,
    )
    return prompt, form


def _continues(messages: list[Message]) -> bool:
    """Remove an empty last turn. Return whether the answer continues the model's last turn."""
    if not messages or messages[-1].role != "assistant":
        return False
    if messages[-1].parts == _NOTHING:
        messages.pop()
        return False
    if not all(isinstance(part, Text) for part in messages[-1].parts):
        raise BadRequest(
            "the last turn is the model's and has more than text, so it cannot be continued",
            param=messages[-1].param,
        )
    return True


def _variables(thinking: GeminiThinking | None) -> dict[str, Scalar]:
    variables: dict[str, Scalar] = {}
    if thinking is None:
        return variables
    if thinking.thinking_budget is not None:
        variables["enable_thinking"] = thinking.thinking_budget != 0
    level = (thinking.thinking_level or "").lower()
    if level and level != "thinking_level_unspecified":
        variables |= {"enable_thinking": True, "reasoning_effort": level}
    return variables
