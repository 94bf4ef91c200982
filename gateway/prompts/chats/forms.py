"""The conversion of messages and tools to the form that a template with certain traits takes."""

import json
from collections.abc import Sequence
from typing import Any

from gateway.prompts.chats.messages import Message, Reasoning, Text, template_form
from gateway.prompts.chats.traits import TemplateTraits

Tool = dict[str, Any]  # a tool as the client sent it, in OpenAI's form


def form_of(message: Message, traits: TemplateTraits) -> dict[str, Any]:
    """Convert `message` to the form that a template with these traits takes."""
    form = template_form(message)
    calls = form.get("tool_calls", ())
    if traits.arguments == "text":
        for call in calls:
            function = call["function"]
            function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
    text = form["content"]
    if traits.content_parts:
        form["content"] = [_part(text)]
    if calls and traits.null_content and not text.strip():
        form["content"] = None
    thought = next((part.text for part in message.parts if isinstance(part, Reasoning)), None)
    if thought is None:
        return form
    if traits.reasoning == "part":
        said = [_part(text)] if text else []
        return {**form, "content": [{"type": "thinking", "thinking": thought}, *said]}
    return {**form, traits.reasoning: thought}


def _part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def tools_of(tools: Sequence[Tool] | None, traits: TemplateTraits) -> list[Tool] | None:
    """Add to tools the fields that a template with these traits needs."""
    if not tools:
        return None if traits.no_tools == "null" else []
    if traits.completed_tools == "as_sent":
        return list(tools)
    whole = traits.completed_tools != "described"
    completed = [_completed(tool, with_parameters=whole) for tool in tools]
    return [*map(_deepened, completed)] if traits.completed_tools == "deep" else completed


def _completed(tool: Tool, *, with_parameters: bool) -> Tool:
    function = tool["function"]
    empty: dict[str, Any] = {"name": function["name"], "description": ""}
    if with_parameters:
        empty["parameters"] = {"type": "object", "properties": {}}
    given = {name: value for name, value in function.items() if value is not None}
    return tool if empty.keys() <= given.keys() else {**tool, "function": {**empty, **given}}


def _deepened(tool: Tool) -> Tool:
    function = tool["function"]
    schema = {"properties": {}, "required": [], **function["parameters"]}
    properties = schema["properties"]
    if isinstance(properties, dict):
        schema["properties"] = {name: _described(one) for name, one in properties.items()}
    return {**tool, "function": {**function, "parameters": schema}}


def _described(schema: Any) -> Any:
    return {"description": "", **_filled(schema)} if isinstance(schema, dict) else schema


def _filled(schema: Any) -> Any:
    inner = {"array": "items", "object": "additionalProperties"}
    if not isinstance(schema, dict) or not isinstance(schema.get("type"), str):
        return schema
    name = inner.get(schema["type"])
    return schema if name is None else {**schema, name: _filled(schema.get(name, {}))}


def given_of(
    messages: Sequence[Message],
    tools: Sequence[Tool] | None,
    traits: TemplateTraits,
    *,
    add_generation_prompt: bool,
) -> dict[str, Any]:
    """Compose a template's inputs from a chat that was fitted to the template."""
    is_led = not messages or messages[0].role == "system"
    if tools and traits.tools_need_system and not is_led:
        messages = [Message("system", (Text(""),)), *messages]
    return {
        "messages": [form_of(message, traits) for message in messages],
        "tools": tools_of(tools, traits),
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
    }
