"""The parts of a request in OpenAI's, Anthropic's or Gemini's form, in the order of reading.

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
    tools = _list(request.get("tools"))
    later = _deferred(tools)
    for place, tool in enumerate(tools):
        if place in later:
            continue
        if isinstance(tool, dict) and (declared := either(tool, "functionDeclarations")):
            yield from _declared(declared, f"tools[{place}].functionDeclarations")
        elif isinstance(tool, dict):
            described = tool.get("function", tool)
            name = described.get("name") if isinstance(described, dict) else None
            text = json.dumps(tool, ensure_ascii=False)
            yield RequestPart(f"tools[{place}]", "tools", text, str(name))


def _deferred(tools: list[Any]) -> set[int]:
    """Find Anthropic's deferred tools, which the server describes among the messages."""
    known = {place: one for place, one in enumerate(tools) if isinstance(one, dict)}
    if any(str(one.get("type")).startswith("tool_search_tool") for one in known.values()):
        return set()
    later = {at for at, one in known.items() if "input_schema" in one and one.get("defer_loading")}
    return later if len(later) < len(tools) else set()


def _declared(functions: Any, where: str) -> Iterator[RequestPart]:
    for place, one in enumerate(_list(functions)):
        if isinstance(one, dict):
            text = json.dumps(one, ensure_ascii=False)
            yield RequestPart(f"{where}[{place}]", "tools", text, str(one.get("name")))


def _system(request: Mapping[str, Any]) -> Iterator[RequestPart]:
    for part in _texts(request.get("system"), "system", "system", number="{}[{}]"):
        yield part._replace(text=without_billing_header(part.text))
    yield from _texts(request.get("instructions"), "instructions", "system", number="{}[{}]")
    yield from _content(either(request, "systemInstruction"), "systemInstruction", "system")


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
    contents = request.get("contents")
    for place, one in enumerate(contents if isinstance(contents, list) else [contents]):
        yield from _content(one, f"contents[{place}]", "messages")


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


def _content(content: Any, where: str, kind: PartKind) -> Iterator[RequestPart]:
    """List the parts of a turn in Gemini's form."""
    parts = content.get("parts") if isinstance(content, dict) else content
    for place, part in enumerate(parts if isinstance(parts, list) else [parts]):
        text = part.get("text") if isinstance(part, dict) else part
        spelled = text if isinstance(text, str) else json.dumps(part, ensure_ascii=False)
        if part is not None:
            yield RequestPart(f"{where}.parts[{place}]", kind, spelled)


def either(request: Mapping[str, Any], name: str) -> Any:
    """Return a field by its name in camel case, or else in snake case."""
    snake = "".join(f"_{one.lower()}" if one.isupper() else one for one in name)
    return request.get(name, request.get(snake))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
