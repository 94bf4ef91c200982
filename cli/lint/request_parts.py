"""The parts of a request in OpenAI's or Anthropic's form, in the order in which the model reads.

The order is tools, system texts, messages, as Anthropic documents it. Most chat templates put
system texts before tools; the findings are the same.

Claude Code's billing header is left out of the field `system`, which belongs to `/v1/messages`.
There the server removes the header before the model sees it.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gateway.diagnosis.parts import PartKind
from gateway.diagnosis.volatile import without_billing_header


class RequestPart(NamedTuple):
    """A part of a request, and its text. A tool's text is its JSON with the keys as sent."""

    name: str
    kind: PartKind
    text: str
    tool: str | None = None


def parts_of(request: Mapping[str, Any]) -> list[RequestPart]:
    """List all parts of a request. Other fields are skipped."""
    return [*_tools(request), *_system(request), *_messages(request)]


def _tools(request: Mapping[str, Any]) -> Iterator[RequestPart]:
    for place, tool in enumerate(_list(request.get("tools"))):
        if isinstance(tool, dict):
            described = tool.get("function", tool)
            name = described.get("name") if isinstance(described, dict) else None
            text = json.dumps(tool, ensure_ascii=False)
            yield RequestPart(f"tools[{place}]", "tools", text, str(name))


def _system(request: Mapping[str, Any]) -> Iterator[RequestPart]:
    for part in _texts(request.get("system"), "system", "system", number="{}[{}]"):
        yield part._replace(text=without_billing_header(part.text))
    yield from _texts(request.get("instructions"), "instructions", "system", number="{}[{}]")


def _messages(request: Mapping[str, Any]) -> Iterator[RequestPart]:
    if request.get("prompt") is not None:
        yield from _texts(request["prompt"], "prompt", "messages", number="{}[{}]")
    for field in ("messages", "input"):
        said = request.get(field)
        if isinstance(said, str):
            yield RequestPart(field, "messages", said)
        for place, one in enumerate(_list(said)):
            if isinstance(one, dict):
                yield from _message(one, f"{field}[{place}]")


def _message(message: Mapping[str, Any], where: str) -> Iterator[RequestPart]:
    is_system = message.get("role") in ("system", "developer")
    kind: PartKind = "system" if is_system else "messages"
    for field in ("content", "output", "arguments"):
        yield from _texts(message.get(field), where, kind, number="{}.content[{}]")
    for call in _list(message.get("tool_calls")):
        yield RequestPart(where, kind, json.dumps(call, ensure_ascii=False))


def _texts(value: Any, where: str, kind: PartKind, number: str) -> Iterator[RequestPart]:
    if isinstance(value, str):
        yield RequestPart(where, kind, value)
    for place, block in enumerate(_list(value)):
        if isinstance(block, str):
            yield RequestPart(number.format(where, place), kind, block)
        elif isinstance(block, dict):
            text = block.get("text", block.get("content", block.get("input")))
            spelled = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)
            yield RequestPart(number.format(where, place), kind, "" if text is None else spelled)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
