"""The conversion of messages and tools to the form that a template with certain traits takes."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from gateway.prompts.chats.messages import Message, Reasoning, Text, ToolCall, template_form
from gateway.prompts.chats.traits import TemplateTraits
from gateway.turn_formats.families.objects.hermes import HermesFormat
from gateway.turn_formats.turn_format import ToolFormat

Tool = dict[str, Any]  # a tool as the client sent it, in OpenAI's form


def forms_of(
    message: Message, traits: TemplateTraits, tool_format: ToolFormat
) -> list[dict[str, Any]]:
    """Convert `message` to the forms that a template with these traits takes.

    If the template shows no calls, they are written as text in `tool_format`. The text is written
    here, after control tokens in the request's strings were broken up, so that the text's own
    markers are control tokens.
    """
    form = form_of(message, traits)
    calls = [part for part in message.parts if isinstance(part, ToolCall)]
    if traits.calls != "text" or not (calls or message.role == "tool"):
        return [form]
    if not calls:
        return [{**form, "role": tool_format.result_role}]
    thoughts = tuple(part for part in message.parts if isinstance(part, Reasoning))
    text = "".join(part.text for part in message.parts if isinstance(part, Text))
    forms = []
    for number, turn in enumerate(_turns(text, calls, tool_format)):
        parts = (*(() if number else thoughts), Text(turn["content"]))
        fields = {name: value for name, value in turn.items() if name != "content"}
        forms.append({**form_of(replace(message, parts=parts), traits), **fields})
    return forms


def _turns(
    text: str, calls: Sequence[ToolCall], tool_format: ToolFormat
) -> Sequence[Mapping[str, str]]:
    written = [(call.name, call.arguments) for call in calls]
    return tool_format.turns(text, written) or HermesFormat().turns(text, written) or ()


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
    given = _given(function)
    return tool if empty.keys() <= given.keys() else {**tool, "function": {**empty, **given}}


def _deepened(tool: Tool) -> Tool:
    function = tool["function"]
    empty: dict[str, Any] = {"type": "object", "properties": {}, "required": []}
    given = _given(function["parameters"])
    schema = given | {name: value for name, value in empty.items() if name not in given}
    properties = schema["properties"]
    if isinstance(properties, dict):
        schema["properties"] = {name: _described(one) for name, one in properties.items()}
    return {**tool, "function": {**function, "parameters": schema}}


def _given(fields: Tool) -> Tool:
    return {name: value for name, value in fields.items() if value is not None}


def _described(schema: Any) -> Any:
    schema = _filled(schema)
    if not isinstance(schema, dict):
        return schema
    given = _given(schema)
    return {**given, "description": given.get("description", "")}


def _filled(schema: Any) -> Any:
    """Fill in missing schemas of items, and leave out the type `null`.

    Instead of null, a model may leave out the value.
    """
    if not isinstance(schema, dict) or "type" not in schema:
        return {} if schema is True else schema
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    kinds = [kind for kind in kinds if kind != "null"]
    schema = {name: value for name, value in schema.items() if name != "type" or kinds}
    if len(kinds) != 1:
        return schema | ({"type": kinds} if kinds else {})
    inner = {"array": "items", "object": "additionalProperties"}.get(kinds[0])
    filled = {} if inner is None else {inner: _filled(schema.get(inner, {}))}
    return {**schema, "type": kinds[0], **filled}


def given_of(
    messages: Sequence[Message],
    tools: Sequence[Tool] | None,
    traits: TemplateTraits,
    *,
    add_generation_prompt: bool,
    tool_format: ToolFormat | None = None,
) -> dict[str, Any]:
    """Compose a template's inputs from a chat that was fitted to the template.

    `tool_format` writes calls if the template shows none; by default they are written as in most
    training data, in Hermes' format.
    """
    writes = tool_format or HermesFormat()
    is_led = bool(messages) and messages[0].role == "system"
    if tools and traits.tools_need_system and not is_led:
        messages = [Message("system", (Text(""),)), *messages]
    forms = [form for one in messages for form in forms_of(one, traits, writes)]
    shown = tools_of(tools, traits)
    if traits.tools_in == "system" and shown:
        functions = [tool["function"] for tool in shown]
        forms[0]["tools"] = json.dumps(functions, ensure_ascii=False)
    return {
        "messages": forms,
        "tools": None,
        **({} if traits.tools_in == "system" else {traits.tools_in: shown}),
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
    }
