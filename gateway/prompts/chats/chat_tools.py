"""The tools of a chat as JSON: functions, tools that take text, and hosted tools.

A template shows the model a tool as the client sent it, with all fields in the client's order. A
tool is therefore checked as a Struct, and passed on as a plain object. A tool that takes text is
passed on as a function (`free_formats.py`). Tools of other types are not passed on.

Elsewhere: how a model writes a call (`gateway/turn_formats`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from gateway.http.bodies.body import parse_part
from gateway.prompts.chats.chat_json import CacheControl
from gateway.prompts.chats.forms import Tool
from gateway.prompts.chats.free_formats import FreeFormat, FreeFormats, free_function, lark_spec
from gateway.prompts.chats.offered_tools import PassedOver
from gateway.turn_formats.turn_format import ToolSpec

MAX_TOOLS = 128  # maximum number of a request's tools, the same as OpenAI's
NOT_RUN = "tools of this type run elsewhere; nothing here runs them"


class _Typed(Struct, frozen=True):
    type: str = "function"


class _Function(Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None  # a JSON schema
    strict: bool | None = None
    cache_control: CacheControl | None = None


class _FunctionTool(Struct, frozen=True):
    function: _Function
    type: Literal["function"] = "function"
    cache_control: CacheControl | None = None


class _Grammar(Struct, frozen=True):
    definition: str
    syntax: Literal["lark", "regex"]


class _Format(Struct, frozen=True):
    type: Literal["text", "grammar"]
    grammar: _Grammar | None = None


class _Custom(Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1)]
    description: str | None = None
    format: _Format | None = None
    cache_control: CacheControl | None = None


class _CustomTool(Struct, frozen=True):
    type: Literal["custom"]
    custom: _Custom
    cache_control: CacheControl | None = None


class _Sent(Struct, frozen=True):
    tools: Annotated[list[Raw], Meta(max_length=MAX_TOOLS)] | None


_SENT = msgspec.json.Decoder(_Sent)
_TYPED = msgspec.json.Decoder(_Typed)
_FUNCTION = msgspec.json.Decoder(_FunctionTool)
_CUSTOM = msgspec.json.Decoder(_CustomTool)
_PLAIN = msgspec.json.Decoder(dict[str, Any])


def _schema() -> dict[str, Any]:
    """Return the schema with each reference replaced by its target.

    References in the schema of a `Raw` field would not be resolved.
    """
    kinds = {_FunctionTool: "Tool", _CustomTool: "CustomTool"}
    items, named = msgspec.json.schema_components([*kinds], ref_template="{name}")
    titles = {"_Function": "Function", "_Custom": "Custom", "CacheControl": "CacheControl"}
    titles |= {kind.__name__: title for kind, title in kinds.items()}

    def whole(schema: Any) -> Any:
        if isinstance(schema, list):
            return [whole(one) for one in schema]
        if not isinstance(schema, dict):
            return schema
        name = schema.get("$ref")
        if name is not None:
            return {**whole(named[name]), "title": titles.get(name, name.strip("_"))}
        return {key: whole(one) for key, one in schema.items()}

    other = {"type": "string", "not": {"enum": ["function", "custom"]}}
    passed_over = {"type": "object", "properties": {"type": other}, "required": ["type"]}
    tools = {"type": "array", "maxItems": MAX_TOOLS}
    tools["items"] = {"anyOf": [*whole([*items]), {**passed_over, "title": "OtherTool"}]}
    return {"anyOf": [tools, {"type": "null"}]}


Tools = Annotated[Raw, Meta(extra_json_schema=_schema())]


@dataclass(frozen=True, slots=True)
class SentTools:
    """The tools of a request: the tools shown to the model, and the ignored tools."""

    forms: tuple[Tool, ...] = ()
    places: tuple[int, ...] = ()
    free: frozenset[str] = frozenset()
    specs: tuple[ToolSpec, ...] = ()
    passed_over: tuple[PassedOver, ...] = ()
    # cache breakpoints, each with its tool's index
    marks: tuple[tuple[int, CacheControl], ...] = ()

    @classmethod
    def of(cls, raw: Raw) -> SentTools:
        """Read the tools in a field of a body that `parse` has checked.

        Raises BadRequest with the first wrong field, such as `tools[3].function.name`.
        """
        if not bytes(raw):
            return cls()
        tools = parse_part(_SENT, b'{"tools":%b}' % bytes(raw)).tools or []
        formats = FreeFormats()
        read = [_read(bytes(one), f"tools[{place}]", formats) for place, one in enumerate(tools)]
        shown = [(place, one) for place, one in enumerate(read) if isinstance(one, _Shown)]
        return cls(
            tuple(one.form for _, one in shown),
            tuple(place for place, _ in shown),
            frozenset(one.form["function"]["name"] for _, one in shown if one.is_free),
            tuple(one.spec for _, one in shown),
            tuple(
                one
                for had in read
                for one in ((had,) if isinstance(had, PassedOver) else had.not_held)
            ),
            tuple((place, one.mark) for place, one in shown if one.mark is not None),
        )

    def up_to(self, place: int) -> list[Tool]:
        """List the shown tools with a request index up to `place`."""
        return [*self.forms[: sum(one <= place for one in self.places)]]


class _Shown(Struct, frozen=True):
    form: Tool
    mark: CacheControl | None
    is_free: bool = False
    lark: str | None = None
    not_held: tuple[PassedOver, ...] = ()

    @property
    def spec(self) -> ToolSpec:
        [spec] = specs_of([self.form])
        return spec if self.lark is None else lark_spec(spec, self.lark)


def _read(spelled: bytes, where: str, formats: FreeFormats) -> _Shown | PassedOver:
    match parse_part(_TYPED, spelled, where).type:
        case "function":
            sent = parse_part(_FUNCTION, spelled, where)
            return _Shown(_plain(spelled, where), sent.cache_control or sent.function.cache_control)
        case "custom":
            return _free(parse_part(_CUSTOM, spelled, where), where, formats)
        case other:
            return PassedOver(where, other[:64], NOT_RUN)


def _plain(spelled: bytes, where: str) -> Tool:
    # Ignored tools must be valid too, so every value is parsed.
    tool: Tool = parse_part(_PLAIN, spelled, where)
    if "type" not in tool:
        tool = {"type": "function", **tool}
    # The model is not shown breakpoints. Otherwise a breakpoint would change the prompt.
    tool.pop("cache_control", None)
    tool["function"].pop("cache_control", None)
    return tool


def _free(sent: _CustomTool, where: str, formats: FreeFormats) -> _Shown:
    custom = sent.custom
    grammar = None if custom.format is None else custom.format.grammar
    format_ = None
    if grammar is not None:
        format_ = FreeFormat(type="grammar", syntax=grammar.syntax, definition=grammar.definition)
    form = free_function(custom.name, custom.description, format_, formats)
    not_held = tuple(formats.not_held(format_, f"{where}.custom"))
    mark = sent.cache_control or custom.cache_control
    lark = formats.held(format_).lark
    return _Shown(form, mark, is_free=True, lark=lark, not_held=not_held)


def specs_of(tools: Sequence[Tool]) -> tuple[ToolSpec, ...]:
    """Return the specifications of callable tools, given as in `SentTools`."""
    functions = [tool["function"] for tool in tools]
    return tuple(
        ToolSpec(one["name"], one.get("parameters"), bool(one.get("strict"))) for one in functions
    )
