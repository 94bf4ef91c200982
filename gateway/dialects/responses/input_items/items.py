"""Items of the input: their kinds, required fields, and stored form.

An item is stored with an id, and with its text in parts. Clients can then list the item, refer to
it, and continue it in a later response.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from gateway.dialects.responses.input_items.client_tools import CLIENT_CALLS, CLIENT_OUTPUTS
from gateway.dialects.responses.input_items.hosted_items import HOSTED
from gateway.dialects.responses.schema import Item, ItemPart
from gateway.errors import BadRequest

REFERENCE = "item_reference"
STORED = "previous_response_id"  # the request field that names a stored response
ADDED_TOOLS, FOUND_TOOLS = "additional_tools", "tool_search_output"
_TEXTS = {"input_text", "output_text", "text"}
_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "tool_search_call": "tsc",
    FOUND_TOOLS: "tso",
    ADDED_TOOLS: "at",
    "local_shell_call": "lsh",
    "local_shell_call_output": "lsho",
    "shell_call": "sh",
    "shell_call_output": "sho",
    "apply_patch_call": "apc",
    "apply_patch_call_output": "apco",
    **HOSTED,
}
CALLS = ("function_call", "custom_tool_call", "tool_search_call", *CLIENT_CALLS)
OUTPUTS = ("function_call_output", "custom_tool_call_output", FOUND_TOOLS, *CLIENT_OUTPUTS)


@dataclass(frozen=True, slots=True)
class Placed:
    """An item, and the request field that it came from."""

    item: Item
    param: str


def item_id(kind: str, request_id: str, number: int) -> str:
    """Make an item's id, which contains its response's id (`response_of`)."""
    return f"{_PREFIXES[kind]}_{request_id}{number:04x}"


def response_of(an_item_id: str) -> str:
    """Return the id of the response that an item belongs to.

    The result is meaningless if the gateway did not make the item's id.
    """
    return f"resp_{an_item_id.partition('_')[2][:-4]}"


def input_items(given: str | Sequence[Item] | None) -> list[Item]:
    """List the items of a request's `input`. A string counts as one item."""
    if isinstance(given, str):
        return [Item(role="user", content=given)]
    return list(given or ())


def checked(placed: Iterable[Placed], request_id: str) -> list[Placed]:
    """Check each item and return it in its stored form; raise BadRequest for a wrong field."""
    return [
        Placed(_checked(one.item, one.param, request_id, number), one.param)
        for number, one in enumerate(placed)
    ]


def text_of(parts: str | Sequence[ItemPart] | None, between: str = "\n") -> str:
    """Join the text of the parts."""
    if parts is None or isinstance(parts, str):
        return parts or ""
    return between.join(part.text or part.refusal or "" for part in parts)


def _checked(item: Item, param: str, request_id: str, number: int) -> Item:
    kind = item.type or "message"
    if kind not in _PREFIXES:
        raise BadRequest(
            f"items of type `{kind[:40]}` are not supported",
            code="unsupported_parameter",
            param=f"{param}.type",
        )
    kept = replace(item, type=kind, id=item.id or item_id(kind, request_id, number))
    match kind:
        case "message":
            return _message(kept, param)
        case "function_call":
            _require(item, ("call_id", "name", "arguments"), param)
        case "custom_tool_call":
            _require(item, ("call_id", "name", "input"), param)
        case "tool_search_call":
            _require(item, ("arguments",), param)
        case "function_call_output" | "custom_tool_call_output":
            _require(item, ("call_id", "output"), param)
            _check_parts(item.output, f"{param}.output")
        case "local_shell_call" | "shell_call" | "apply_patch_call":
            _require(item, ("call_id", CLIENT_CALLS[kind].field), param)
        case "local_shell_call_output":  # clients may send the call's id as `id`
            kept = replace(kept, call_id=item.call_id or item.id)
            _require(kept, ("call_id", "output"), param)
        case "shell_call_output":
            _require(item, ("call_id", "output"), param)
        case "apply_patch_call_output":
            _require(item, ("call_id", "status"), param)
        case "mcp_call":
            _require(item, ("name", "arguments"), param)
        case "additional_tools" | "tool_search_output":
            _require(item, ("tools",), param)
        case "reasoning":
            return replace(kept, summary=item.summary or [])
    return replace(kept, status=item.status or "completed")


def _message(item: Item, param: str) -> Item:
    _require(item, ("role", "content"), param)
    _check_parts(item.content, f"{param}.content")
    content = item.content
    if isinstance(content, str):
        is_said = item.role == "assistant"
        part = ItemPart(
            type="output_text" if is_said else "input_text",
            text=content,
            annotations=[] if is_said else None,
        )
        content = [part]
    return replace(item, content=content, status=item.status or "completed")


def _require(item: Item, names: Iterable[str], param: str) -> None:
    for name in names:
        if getattr(item, name) is None:
            raise BadRequest(
                f"the item has no `{name}`",
                code="missing_required_parameter",
                param=f"{param}.{name}",
            )


def _check_parts(parts: str | Sequence[ItemPart] | None, param: str) -> None:
    for place, part in enumerate(() if isinstance(parts, str) else parts or ()):
        if part.type is None:
            raise BadRequest(
                "the part has no `type`",
                code="missing_required_parameter",
                param=f"{param}[{place}].type",
            )
        field = {"refusal": "refusal"}.get(part.type, "text")
        if part.type not in _TEXTS and part.type != "refusal":
            raise BadRequest(
                f"parts of type `{part.type[:40]}` are not supported: this model reads text",
                code="unsupported_parameter",
                param=f"{param}[{place}].type",
            )
        if getattr(part, field) is None:
            raise BadRequest(
                f"the part has no `{field}`",
                code="missing_required_parameter",
                param=f"{param}[{place}].{field}",
            )
