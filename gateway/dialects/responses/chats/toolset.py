"""All tools of a request: each tool's name for the model, and its place in the prompt.

Tools come from the request's `tools` and from input items. `additional_tools` and the results of a
search for tools are items of this kind. Tools from items before the conversation are shown with the
request's tools. Later tools are shown in place, so that the prompt before them does not change.

A tool of a namespace keeps its own name. If another tool has this name, the tool is named
NAMESPACE__NAME. `tool_entries.py` reads a single tool.

Elsewhere: which tools may be called (`answer_form.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.structs import replace

from gateway.dialects.responses.input_items.items import ADDED_TOOLS, FOUND_TOOLS, Placed
from gateway.dialects.responses.input_items.tool_entries import (
    MAX_OFFERED,
    Called,
    Offered,
    read_entry,
)
from gateway.errors import BadRequest
from gateway.http.bodies.body import parse_part
from gateway.prompts.chats.chat_json import CacheControl
from gateway.prompts.chats.chat_tools import MAX_TOOLS
from gateway.prompts.chats.forms import Tool
from gateway.prompts.chats.free_formats import FreeFormats
from gateway.prompts.chats.offered_tools import PassedOver
from gateway.turn_formats.turn_format import ToolSpec

Key = tuple[str | None, str]  # a namespace (or None) and a tool's name


class _Sent(Struct, frozen=True):
    tools: Annotated[list[dict[str, Any]], Meta(max_length=MAX_TOOLS)] | None


_SENT = msgspec.json.Decoder(_Sent)


@dataclass(slots=True)
class Toolset:
    """The tools of one request, from its `tools` and its input items."""

    offered: dict[Key, Offered] = field(default_factory=dict)
    passed_over: list[PassedOver] = field(default_factory=list)
    # the breakpoints on tools, each with the tool's index in `tools`
    marks: list[tuple[int, CacheControl]] = field(default_factory=list)
    in_place: dict[int, list[Tool]] = field(default_factory=dict)
    _num_shown: int = 0
    # each tool's namespace and name, by the name that the model knows
    _keys: dict[str, Key] = field(default_factory=dict)
    _formats: FreeFormats = field(default_factory=FreeFormats)

    @classmethod
    def of(cls, raw: Raw, items: Sequence[Placed]) -> Toolset:
        """Read the tools of a request and of its items; raise BadRequest for a wrong field."""
        toolset, first = cls(), [*takewhile(_is_before_all, items)]
        toolset._take(_sent(raw), "tools", is_own=True)
        for placed in first:
            toolset._take(placed.item.tools or (), f"{placed.param}.tools")
        toolset._num_shown = len(toolset.offered)
        for place, placed in enumerate(items):
            if place >= len(first) and placed.item.type in (ADDED_TOOLS, FOUND_TOOLS):
                found = toolset._take(placed.item.tools or (), f"{placed.param}.tools")
                toolset.in_place[place] = [one.form for one in found]
        return toolset

    def forms(self) -> list[Tool]:
        """List the tools that the prompt shows at its beginning."""
        return [one.form for one in self._shown()]

    def up_to(self, entry: int) -> list[Tool]:
        """List the tools of the request's `tools`, up to the tool at the index `entry`."""
        return [one.form for one in self._shown() if one.entry is not None and one.entry <= entry]

    def specs(self) -> tuple[ToolSpec, ...]:
        """List the specs of all callable tools."""
        return tuple(one.spec for one in self.offered.values())

    def later_specs(self) -> tuple[ToolSpec, ...]:
        """List the specs of the callable tools that are not shown at the prompt's beginning."""
        return self.specs()[self._num_shown :]

    @property
    def types_passed_over(self) -> frozenset[str]:
        """The types of the ignored tools."""
        return frozenset(one.type for one in self.passed_over)

    def calls(self) -> Mapping[str, Called]:
        """Map the model's name of a tool to the form in which the client gets the tool's calls."""
        return {one.shown_name: one.called for one in self.offered.values()}

    def named(self, kind: str, name: str | None, namespace: str | None) -> list[str]:
        """List the model's names of the tools that match a tool choice."""
        return [
            one.shown_name
            for (of, own), one in self.offered.items()
            if one.called.kind == kind and own == name and namespace in (None, of)
        ]

    def as_shown(self, placed: Placed) -> Placed:
        """Rename the tool in a call's item to the name that the model knows."""
        item = placed.item
        found = self.offered.get((item.namespace, item.name or ""))
        if item.call_id is None or found is None or item.name == found.shown_name:
            return placed
        return Placed(replace(item, name=found.shown_name), placed.param)

    def _shown(self) -> list[Offered]:
        return [*self.offered.values()][: self._num_shown]

    def _take(
        self, entries: Iterable[dict[str, Any]], where: str, *, is_own: bool = False
    ) -> list[Offered]:
        read: list[Offered] = []
        for entry, tool in enumerate(entries):
            own = entry if is_own else None
            for one in read_entry(tool, f"{where}[{entry}]", own, self._formats):
                if isinstance(one, PassedOver):
                    self.passed_over.append(one)
                elif isinstance(one, CacheControl):
                    self.marks.append((entry, one))
                else:
                    read.append(one)
            _check_number(len(read), len(self.passed_over))
        # Tools without a namespace choose their names first.
        names = {
            id(one): self._name(one)
            for one in sorted(read, key=lambda one: one.called.namespace is not None)
        }
        found: dict[Key, Offered] = {}
        for one in read:
            named = _renamed(one, names[id(one)])
            if found.setdefault(_key(one), named).form != named.form:
                raise _name_taken(one)
        # A tool that is defined again keeps the form in which it was first shown.
        self.offered |= {key: one for key, one in found.items() if key not in self.offered}
        _check_number(len(self.offered))
        return [*found.values()]

    def _name(self, one: Offered) -> str:
        key = _key(one)
        space, name = key
        if space is not None and self._keys.get(name, key) != key:
            name = f"{space}__{name}"
        if self._keys.setdefault(name, key) != key:
            raise _name_taken(one)
        return name


def _check_number(*counts: int) -> None:
    if max(counts) > MAX_OFFERED:
        raise BadRequest(f"there are more than {MAX_OFFERED} tools", param="tools")


def _name_taken(one: Offered) -> BadRequest:
    return BadRequest("another tool has this name", param=f"{one.param}.name")


def _key(one: Offered) -> Key:
    return one.called.namespace, one.called.name


def _renamed(one: Offered, name: str) -> Offered:
    function = {**one.form["function"], "name": name}
    return replace(one, form={**one.form, "function": function})


def _is_before_all(placed: Placed) -> bool:
    return placed.item.type == ADDED_TOOLS or placed.item.role in ("system", "developer")


def _sent(raw: Raw) -> list[dict[str, Any]]:
    if not bytes(raw):
        return []
    return parse_part(_SENT, b'{"tools":%b}' % bytes(raw)).tools or []
