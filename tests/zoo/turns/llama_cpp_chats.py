"""The cases of llama.cpp's tests of chats: texts of models, and the messages that they stand for.

The tests are C++ in which each case is a chain of calls:

    tst.test("<tool_call>...").tools({ get_time_tool }).expect_tool_calls({ ... }).run();

This module reads literals, names and brackets of the source, and nothing else of C++.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_TOKEN = re.compile(
    r'R"(?P<mark>[^()\s]*)\((?P<raw>.*?)\)(?P=mark)"|"(?P<text>(?:[^"\\]|\\.)*)"'
    r"|'(?:[^'\\]|\\.)'|//[^\n]*|/\*.*?\*/|(?P<word>\w+)|(?P<char>[^\s\w])",
    re.DOTALL,
)
_ESCAPE = re.compile(r"((?:\\x[0-9a-fA-F]{2})+)|\\u([0-9a-fA-F]{4})|\\(.)", re.DOTALL)
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}
_BRACKETS = {"(": ")", "{": "}", "[": "]"}


@dataclass(frozen=True)
class Literal:
    """A string literal's value."""

    value: str


@dataclass
class Group:
    """The items between two brackets: names and other characters, literals, and groups."""

    opens: str
    items: list[Any] = field(default_factory=list)

    def text(self) -> str:
        """Return all literals in the group, joined."""
        texts = (one for one in self.items if isinstance(one, Literal | Group))
        return "".join(one.value if isinstance(one, Literal) else one.text() for one in texts)

    def arguments(self) -> list[Group]:
        """Split the items at commas."""
        found = [Group(self.opens)]
        for item in self.items:
            if item == ",":
                found.append(Group(self.opens))
            else:
                found[-1].items.append(item)
        return [one for one in found if one.items]


@dataclass
class Case:
    """A text that a model with `template` writes, the calls of the chain, and the expected message.

    `content`, `reasoning` and `calls` are None if the case expects none in particular.
    """

    template: str
    written: str
    chain: dict[str, Group]
    tools: list[tuple[str, Any]]
    is_read: bool  # whether its text and tools use no variables of the test
    content: str | None = None
    reasoning: str | None = None
    calls: list[tuple[str, str]] | None = None


def cases_in(source: str) -> list[Case]:
    """List the cases of a test's source."""
    root = _grouped(source)
    tools = {name: _tool(one) for name, one in _declared(root, "common_chat_tool")}
    messages = dict(_messages(root))
    return list(_cases(root, tools, messages))


def _grouped(source: str) -> Group:
    stack = [Group("")]
    for token in _TOKEN.finditer(source):
        char = token["char"]
        if token["raw"] is not None or token["text"] is not None:
            text = token["raw"] if token["raw"] is not None else _ESCAPE.sub(_plain, token["text"])
            stack[-1].items.append(Literal(text))
        elif char in _BRACKETS:
            stack.append(Group(char))
        elif char is not None and char in ")}]" and len(stack) > 1:
            closed = stack.pop()
            stack[-1].items.append(closed)
        elif char or token["word"]:
            stack[-1].items.append(char or token["word"])
    return stack[0]


def _plain(found: re.Match[str]) -> str:
    if found[1]:
        return bytes.fromhex(found[1].replace("\\x", "")).decode()
    return chr(int(found[2], 16)) if found[2] else _LETTERS.get(found[3], found[3])


def _declared(group: Group, kind: str) -> Iterator[tuple[str, Group]]:
    for place, item in enumerate(group.items[:-2]):
        name, value = group.items[place + 1 : place + 3]
        if item == kind and isinstance(name, str) and isinstance(value, Group):
            yield name, value


def _tool(group: Group) -> tuple[str, Any]:
    fields = [one.text() for one in group.arguments()]
    return fields[0], json.loads(fields[2]) if len(fields) > 2 and fields[2] else None


def _messages(group: Group) -> Iterator[tuple[str, list[str]]]:
    """Yield messages by name: their content, reasoning, tool and arguments."""
    for place, item in enumerate(group.items):
        if item == "simple_assist_msg" and group.items[place - 1] == "=":
            fields = [one.text() for one in group.items[place + 1].arguments()]
            yield group.items[place - 2], [*fields, "", "", "", ""][:4]


def _cases(
    group: Group, tools: dict[str, Any], messages: dict[str, list[str]], template: str = ""
) -> Iterator[Case]:
    for place, item in enumerate(group.items):
        if item == "peg_tester" and isinstance(group.items[place + 1], Group):
            template = group.items[place + 1].text().removeprefix("models/templates/")
        elif group.items[place : place + 3] == ["tst", ".", "test"]:
            yield _case(template, group.items[place + 3 :], tools, messages)
        elif isinstance(item, Group):
            yield from _cases(item, tools, messages, template)


def _case(
    template: str, items: list[Any], tools: dict[str, Any], messages: dict[str, list[str]]
) -> Case:
    first, *more = items[0].arguments()
    chain: dict[str, Group] = {"test": Group("(", [one for arg in more for one in arg.items])}
    place = 1
    while items[place] == "." and isinstance(items[place + 2], Group):
        chain[items[place + 1]] = items[place + 2]
        place += 3
    offered = [_offered(one, tools) for one in _listed(chain.get("tools"))]
    is_read = all(isinstance(one, Literal) for one in first.items) and None not in offered
    case = Case(template, first.text(), chain, offered, is_read)
    named = messages.get(str(chain["expect"].items[0])) if "expect" in chain else None
    if named is not None:
        case.content, case.reasoning, name, arguments = named
        case.calls = [(name, arguments)] if name else []
    if "expect_content" in chain:
        case.content = chain["expect_content"].text()
    if "expect_reasoning" in chain:
        case.reasoning = chain["expect_reasoning"].text()
    if "expect_tool_calls" in chain:
        fields = [one.items[0].arguments() for one in _listed(chain["expect_tool_calls"])]
        case.calls = [(one[0].text(), one[1].text()) for one in fields]
    return case


def _listed(group: Group | None) -> list[Group]:
    return [] if group is None else group.items[0].arguments()


def _offered(one: Group, tools: dict[str, Any]) -> Any:
    inline = next((item for item in one.items if isinstance(item, Group)), None)
    return tools.get(one.items[0]) if inline is None else _tool(inline)
