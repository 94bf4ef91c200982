"""Items of hosted tools, which another server has run.

An agent that used another server before has these items in its history. If an item has a call and
its result, the model is shown both. An item without a result is left out, and the answer reports
the omission.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from gateway.dialects.responses.schema import Item
from gateway.prompts.chats.offered_tools import PassedOver

NOT_THERE = "what the hosted tool returned is not in the item, so the model is not shown it"
# The id prefix of each hosted item type. The first dict has the items that contain a result, the
# second dict the other items.
_WITH_RESULTS = {
    "code_interpreter_call": "ci",
    "file_search_call": "fs",
    "mcp_call": "mcp",
    "web_search_call": "ws",
}
_WITHOUT = {
    "image_generation_call": "ig",
    "mcp_approval_request": "mcpr",
    "mcp_approval_response": "mcpa",
    "mcp_list_tools": "mcpl",
}
HOSTED = {**_WITH_RESULTS, **_WITHOUT}


class HostedCall(NamedTuple):
    """A hosted tool's call, with its result."""

    name: str
    arguments: Any  # an object, or an object's JSON
    result: str


def hosted_call(item: Item) -> HostedCall | None:
    """Read the call in an item; return None if the item has no result."""
    match item.type:
        case "code_interpreter_call" if item.outputs is not None:
            logs = (str(one.get("logs") or one.get("url") or "") for one in item.outputs)
            return HostedCall("code_interpreter", {"code": item.code or ""}, "\n".join(logs))
        case "file_search_call" if item.results is not None:
            queries = {"queries": item.queries or []}
            return HostedCall("file_search", queries, _spelled(item.results))
        case "web_search_call" if item.results is not None or (item.action or {}).get("sources"):
            action = {name: one for name, one in (item.action or {}).items() if name != "sources"}
            found = item.results or (item.action or {}).get("sources")
            return HostedCall("web_search", action, _spelled(found))
        case "mcp_call" if item.output is not None or item.error is not None:
            said = item.output if isinstance(item.output, str) else _spelled(item.error)
            return HostedCall(item.name or "", item.arguments, said)
    return None


def passed_over(items: Iterable[tuple[Item, str]]) -> Iterator[PassedOver]:
    """Yield notes on the items that the model is not shown."""
    for item, param in items:
        if item.type in HOSTED and hosted_call(item) is None:
            yield PassedOver(param, item.type, NOT_THERE)


def _spelled(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
