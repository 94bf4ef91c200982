"""The conversion of prompts to canonical form, for tenants with the setting `canonical_prompts`.

Three things are changed, and the model still sees everything that it needs:

- Claude Code's billing header, `x-anthropic-billing-header: ...`, is removed from the first line of
  a system text.
- The keys of the JSON objects that define a tool get a fixed order.
- The environment in an agent's system prompt moves to the beginning of the first user turn
  (`environment.py`).

Any order that may have a meaning stays: the order of tools, of every list, and of the arguments
that a tool takes (`properties` and other maps by name). Examples and allowed values do not change.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from gateway.diagnosis.volatile import without_billing_header
from gateway.prompts.chats.environment import environment_last, environment_of, split_environment
from gateway.prompts.chats.messages import Message, Text
from gateway.prompts.generation_request import CacheMark, ChatPrompt, GenerationRequest, Prompt

# The most frequent order of tools' keys in models' training data.
_FIRST = ("type", "function", "name", "description", "enum", "properties", "items", "required")
_BY_NAME = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
_WHOLE = {"enum", "const", "default", "examples", "example"}
_RANK = {key: place for place, key in enumerate(_FIRST)}


def canonical_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Order the keys of `tool`: first the keys that most tools have, then other keys by name."""
    return {key: _value(key, tool[key]) for key in sorted(tool, key=_rank)}


def _rank(key: str) -> tuple[int, str]:
    return _RANK.get(key, len(_RANK)), key


def _value(key: str, value: Any) -> Any:
    if key in _WHOLE:
        return value
    if isinstance(value, dict):
        if key in _BY_NAME:
            return {name: _value("", one) for name, one in value.items()}
        return canonical_tool(value)
    if isinstance(value, list):
        return [_value("", one) for one in value]
    return value


def canonical_prompt(prompt: Prompt) -> Prompt:
    """Convert `prompt` to canonical form if it is a chat; return other prompts unchanged."""
    if not isinstance(prompt, ChatPrompt):
        return prompt
    return _canonical_chat(prompt, environment_of(prompt.messages))


def _canonical_chat(prompt: ChatPrompt, environment: str) -> ChatPrompt:
    tools = None if prompt.tools is None else [canonical_tool(tool) for tool in prompt.tools]
    messages = environment_last([*map(_canonical_message, prompt.messages)], environment)
    return replace(prompt, messages=messages, tools=tools)


def canonical_request(wanted: GenerationRequest) -> GenerationRequest:
    """Convert the prompts of `wanted`, their explanation and breakpoints to canonical form."""
    explain, environment = wanted.explain, ""
    for prompt in wanted.prompts:
        if isinstance(prompt, ChatPrompt):  # a request has either one chat or several texts
            environment = environment_of(prompt.messages)
    if explain is not None and explain.parts is not None:
        parts = (
            part._replace(text=_canonical_system(part.text, environment))
            if part.kind == "system"
            else part
            for part in explain.parts
        )
        explain = replace(explain, parts=tuple(parts))
    return replace(
        wanted,
        prompts=tuple(map(canonical_prompt, wanted.prompts)),
        marks=tuple(_canonical_mark(mark, environment) for mark in wanted.marks),
        explain=explain,
    )


def _canonical_mark(mark: CacheMark, environment: str) -> CacheMark:
    """Convert a breakpoint's chat like the prompt, so that both begin with the same text.

    `environment` comes from the whole prompt, since the breakpoint may cover only the system text.
    """
    if mark.chat is None:
        return mark
    return replace(mark, chat=_canonical_chat(mark.chat, environment))


def _canonical_system(text: str, environment: str) -> str:
    plain = without_billing_header(text)
    return split_environment(plain)[0] if environment else plain


def _canonical_message(message: Message) -> Message:
    if message.role != "system":
        return message
    parts = tuple(
        Text(without_billing_header(part.text)) if isinstance(part, Text) else part
        for part in message.parts
    )
    return msgspec.structs.replace(message, parts=parts)
