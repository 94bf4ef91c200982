"""The reading of one tool of a request: its form for the model, and its calls for the client.

function        is shown as it is
custom          is shown as a function that takes text (`gateway/prompts/chats/free_formats.py`)
namespace       has members, which are shown
tool_search     is shown as a function of this name, if the client runs the search
local_shell, shell, apply_patch   are shown if the client runs them (`client_tools.py`)
other types     are hosted tools: they are left out, and the answer reports the omission
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from gateway.dialects.responses.input_items.client_tools import (
    CLIENT_TOOLS,
    ClientKind,
    client_tool,
)
from gateway.http.bodies.body import invalid
from gateway.prompts.chats.chat_json import CacheControl
from gateway.prompts.chats.chat_tools import MAX_TOOLS, NOT_RUN
from gateway.prompts.chats.forms import Tool
from gateway.prompts.chats.free_formats import FreeFormat, FreeFormats, free_function, lark_spec
from gateway.prompts.chats.offered_tools import PassedOver
from gateway.turn_formats.turn_format import ToolSpec

MAX_OFFERED = 4 * MAX_TOOLS  # maximum number of tools of a request, with the members of namespaces
SEARCH = "tool_search"

T = TypeVar("T", bound=Struct)
Name = Annotated[str, Meta(min_length=1)]
Kind = Literal["function", "custom", "tool_search"] | ClientKind
CALL_ITEMS: Mapping[str, str] = {
    "function": "function_call",
    "custom": "custom_tool_call",
    "tool_search": "tool_search_call",
    **{kind: tool.call_item for kind, tool in CLIENT_TOOLS.items()},
}
# The types of tools without a name. A request has at most one tool of each type.
NAMELESS = (SEARCH, *CLIENT_TOOLS)


class _Typed(Struct, frozen=True):
    type: str


class _Marked(Struct, frozen=True, kw_only=True):
    cache_control: CacheControl | None = None


class _Function(_Marked, frozen=True, kw_only=True):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None  # a JSON schema
    strict: bool | None = None
    defer_loading: bool | None = None


class _Custom(_Marked, frozen=True, kw_only=True):
    name: Name
    description: str | None = None
    format: FreeFormat | None = None


class _Namespace(_Marked, frozen=True, kw_only=True):
    name: Name
    description: str | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=MAX_OFFERED)]


class _Search(_Marked, frozen=True, kw_only=True):
    execution: Literal["server", "client"] | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Run(_Marked, frozen=True, kw_only=True):
    environment: dict[str, Any] | None = None


class Called(Struct, frozen=True):
    """The kind, name and namespace of a tool's calls, as the client receives them."""

    kind: Kind
    name: str
    namespace: str | None = None


class Offered(Struct, frozen=True):
    """A tool that the model may call by the name in its `form`."""

    called: Called
    form: Tool
    strict: bool
    entry: int | None
    param: str
    lark: str | None = None

    @property
    def shown_name(self) -> str:
        """The name by which the model calls the tool."""
        name: str = self.form["function"]["name"]
        return name

    @property
    def spec(self) -> ToolSpec:
        """The tool's name and schema for the grammar of calls."""
        spec = ToolSpec(self.shown_name, self.form["function"].get("parameters"), self.strict)
        return spec if self.lark is None else lark_spec(spec, self.lark)


def read_entry(
    tool: dict[str, Any], where: str, entry: int | None, formats: FreeFormats
) -> Iterator[Offered | PassedOver | CacheControl]:
    """Yield the tools of one entry.

    If `entry` is an index in `tools`, also yield the entry's breakpoint.
    """
    kind = _converted(tool, _Typed, where).type
    if kind == "namespace":
        space = _converted(tool, _Namespace, where)
        for place, member in enumerate(space.tools):
            inner = f"{where}.tools[{place}]"
            kind = _converted(member, _Typed, inner).type
            one = _one(member, kind, inner, entry, formats)
            yield _in_space(one, space, is_first=not place)
            yield from _not_held(member, inner, formats)
    else:
        yield _one(tool, kind, where, entry, formats)
        yield from _not_held(tool, where, formats)
    if entry is not None:
        marked = _converted(tool, _Marked, where) if "cache_control" in tool else _Marked()
        if marked.cache_control is not None:
            yield marked.cache_control


def _in_space(
    one: Offered | PassedOver, space: _Namespace, *, is_first: bool
) -> Offered | PassedOver:
    if isinstance(one, PassedOver):
        return one
    # only the first tool of a namespace has the namespace's description before its own
    if is_first and space.description:
        function = one.form["function"]
        said = f"{space.name}: {space.description}"
        text = "\n\n".join(filter(None, (said, function.get("description"))))
        one = replace(one, form={**one.form, "function": {**function, "description": text}})
    return replace(one, called=replace(one.called, namespace=space.name))


def _one(
    tool: dict[str, Any], kind: str, where: str, entry: int | None, formats: FreeFormats
) -> Offered | PassedOver:
    match kind:
        case "function":
            function = _converted(tool, _Function, where)
            form = _form(function.name, function.description, function.parameters)
            # Calls of a deferred function without a namespace have its name as namespace, as in the
            # API. OpenAI's agents find the function only by this namespace.
            space = function.name if function.defer_loading and entry is not None else None
            called, strict = Called("function", function.name, space), bool(function.strict)
        case "custom":
            custom = _converted(tool, _Custom, where)
            form = free_function(custom.name, custom.description, custom.format, formats)
            called, strict = Called("custom", custom.name), "strict" in form["function"]
            lark = formats.held(custom.format).lark
            return Offered(called, form, strict, entry, where, lark)
        case "tool_search":
            search = _converted(tool, _Search, where)
            if search.execution != "client":
                return PassedOver(where, kind, NOT_RUN)
            form = _form(SEARCH, search.description, search.parameters)
            called, strict = Called("tool_search", SEARCH), False
        case _:
            run = client_tool(kind, _converted(tool, _Run, where).environment)
            if run is None:
                return PassedOver(where, kind[:64], NOT_RUN)
            form, called, strict = run.form, Called(run.kind, run.kind), False
    return Offered(called, form, strict, entry, where)


def _not_held(tool: dict[str, Any], where: str, formats: FreeFormats) -> Iterator[PassedOver]:
    if tool["type"] == "custom":
        yield from formats.not_held(_converted(tool, _Custom, where).format, where)


def _form(name: str, description: str | None, parameters: dict[str, Any] | None) -> Tool:
    function: dict[str, Any] = {"name": name}
    if description is not None:
        function["description"] = description
    if parameters is not None:
        function["parameters"] = parameters
    return {"type": "function", "function": function}


def _converted(tool: dict[str, Any], kind: type[T], where: str) -> T:
    try:
        return msgspec.convert(tool, kind)
    except msgspec.ValidationError as error:
        raise invalid(str(error), where) from None
