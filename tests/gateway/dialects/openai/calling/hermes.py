"""Calls as a Hermes model writes them, and tools to call."""

from __future__ import annotations

import json
from typing import Any

from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolUnionParam

Call = tuple[str, dict[str, Any]]

HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hi"}]
OSLO: Call = ("weather", {"city": "Oslo", "days": 2})
ROME: Call = ("weather", {"city": "Røme 😀"})
CLOCK: Call = ("clock", {})


def written(*calls: Call) -> str:
    return "\n".join(
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': said}, ensure_ascii=False)}\n"
        "</tool_call>"
        for name, said in calls
    )


def tool(
    name: str, properties: dict[str, Any], *, strict: bool | None = None
) -> ChatCompletionToolUnionParam:
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {
        "type": "function",
        "function": {"name": name, "parameters": schema, "strict": strict},
    }


WEATHER = tool("weather", {"city": {"type": "string"}, "days": {"type": "integer"}})
TOOLS: list[ChatCompletionToolUnionParam] = [WEATHER, tool("clock", {})]


def named(name: str) -> Any:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> Any:
    tools = [named(name) for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}
