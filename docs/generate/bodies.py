"""The pages of routes and their bodies, from the OpenAPI description.

A body is described on the first page that needs it. Other pages link to it.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from docs.generate.routes import description
from docs.generate.table import table

_TENANTS_PATHS = ("/v1/", "/v1beta/", "/v2/", "/rerank", "/tokenize", "/detokenize")
_OF_A_ROUTE = re.compile(r"^(Answer|Body) of [^.,:;]*\.( |$)")
_UNSUPPORTED: tuple[dict[str, Any], ...] = (
    {},
    {"default": None},
)
_WITHIN = 4  # maximum number of fields of a body that is described inside the body that uses it
_ON_A_LINE = 6  # maximum number of fields that are written in one line; more fields become a list
_WORTH_A_LINK = 6  # minimum number of fields that a body shares with a linked body


def api_pages() -> dict[str, str]:
    """Write the pages of routes and bodies, of tenants and of operators."""
    described = description()
    routes = [
        (f"{method.upper()} {path}", operation)
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    ]
    theirs = [route for route in routes if route[0].split()[1].startswith(_TENANTS_PATHS)]
    bodies = _Bodies(described["components"]["schemas"], {})
    tenants = bodies.page("http-api.md", theirs)
    return {
        "http-api.md": tenants,
        "admin-api.md": bodies.page("admin-api.md", [one for one in routes if one not in theirs]),
    }


@dataclasses.dataclass(frozen=True, slots=True)
class _Bodies:
    schemas: Mapping[str, Any]
    pages: dict[str, str]
    # bodies that are described inside the body that uses them
    within: set[str] = dataclasses.field(default_factory=set)
    # bodies of the last page, in order
    described: list[str] = dataclasses.field(default_factory=list)

    def page(self, name: str, routes: Sequence[tuple[str, Any]]) -> str:
        """Write a page with its routes, and the bodies that no earlier page has."""
        shown = list(dict.fromkeys(_names_in([operation for _, operation in routes])))
        for body in shown:
            inner = dict.fromkeys(_names_in(self.schemas[body]))
            shown += [one for one in inner if one not in shown]
        self.within.update(self._used_once(shown, [operation for _, operation in routes]))
        own = sorted(
            body
            for body in shown
            if self.pages.setdefault(body, name) == name and body not in self.within
        )
        self.described[:] = own
        rows = [(f"`{route}`{self._query(one)}", *self._cells(one, name)) for route, one in routes]
        parts = ["## Routes", table(("route", "body", "answer"), rows), "## Bodies"]
        requests = set(_names_in([one.get("requestBody", {}) for _, one in routes]))
        for body in own:
            written = self._body(self.schemas[body], name, is_request=body in requests)
            parts.append(f"### {body}\n\n{written}")
        return "\n\n".join(parts)

    @staticmethod
    def _query(operation: Mapping[str, Any]) -> str:
        given = operation.get("parameters", [])
        names = ", ".join(f"`{one['name']}`" for one in given if one["in"] == "query")
        return f" with {names}" if names else ""

    def _cells(self, operation: Mapping[str, Any], page: str) -> tuple[str, str]:
        body = self._content(operation.get("requestBody", {}), page)
        answers: dict[str, list[str]] = {}
        for status, answer in operation["responses"].items():
            if status != "default":
                answers.setdefault(self._content(answer, page), []).append(status)
        said = (
            kind if of == ["200"] else f"{', '.join(of)}: {kind}" for kind, of in answers.items()
        )
        return body, "; ".join(said)

    def _content(self, said: Mapping[str, Any], page: str) -> str:
        kinds = []
        for media, content in said.get("content", {}).items():
            names = ", ".join(self._link(name, page) for name in _names_in(content))
            forms = {"application/json": names, "text/event-stream": f"streamed: {names}"}
            kinds.append(forms.get(media, f"`{media}`"))
        return "; ".join(kinds)

    def _used_once(self, shown: Sequence[str], operations: Sequence[Any]) -> Iterator[str]:
        """Yield the small bodies that are described inside the only body that uses them."""
        used = Counter(_names_in([self.schemas[body] for body in shown]))
        top = {*_names_in(operations)}
        for body in shown:
            schema = self.schemas[body]
            is_small = 0 < len(schema.get("properties", {})) <= _WITHIN
            is_elsewhere = body in top or body in self.pages or used[body] > 1
            if is_small and not is_elsewhere and not any(_names_in(schema)):
                yield body

    def _link(self, name: str, page: str) -> str:
        if name in self.within:
            fields = self._fields(self.schemas[name], page, is_request=False)
            return "{" + ", ".join(f"`{field}`: {kind}" for field, kind in fields.items()) + "}"
        of = self.pages[name]
        return f"[{name}]({'' if of == page else of}#{name.lower()})"

    def _body(self, schema: Mapping[str, Any], page: str, *, is_request: bool) -> str:
        text = " ".join(schema.get("description", "").split())
        text = _OF_A_ROUTE.sub("", text)  # the table of routes links here
        text = re.sub(r"\bNone\b", "null", text)  # as JSON has it
        said = self._fields(schema, page, is_request=is_request)
        shared = ""
        if like := self._like(said, schema, page, is_request=is_request):
            other, theirs = like
            lacking = ", ".join(f"`{name}`" for name in theirs if name not in said)
            said = {name: one for name, one in said.items() if theirs.get(name) != one}
            but = f" but {lacking}" if lacking else ""
            more = "; and these:" if said else "."
            shared = f"The fields of {self._link(other, page)}{but}{more}"
        fields = [
            f"{', '.join(f'`{name}`' for name, _ in group)}: {meaning}"
            for meaning, group in itertools.groupby(said.items(), key=lambda pair: pair[1])
        ]
        is_short = len(fields) <= _ON_A_LINE
        listed = "; ".join(fields) if is_short else "\n".join(f"- {field}" for field in fields)
        return "\n\n".join(filter(None, [text, shared, listed]))

    def _fields(self, schema: Mapping[str, Any], page: str, *, is_request: bool) -> dict[str, str]:
        """Map the fields of a body to their meanings. An optional field's name ends in `?`."""
        required = schema.get("required", [])
        return {
            name if name in required else f"{name}?": self._meaning(one, page)
            for name, one in schema.get("properties", {}).items()
            if not (is_request and one in _UNSUPPORTED and name not in required)
        }

    def _like(
        self, said: Mapping[str, str], schema: Mapping[str, Any], page: str, *, is_request: bool
    ) -> tuple[str, dict[str, str]] | None:
        before = itertools.takewhile(lambda name: self.schemas[name] is not schema, self.described)
        found = {
            name: self._fields(self.schemas[name], page, is_request=is_request) for name in before
        }
        best = max(found.items(), key=lambda one: _same(one[1], said), default=None)
        if best is None or _same(best[1], said) < max(_WORTH_A_LINK, len(best[1]) / 2):
            return None
        return best

    def _meaning(self, said: Mapping[str, Any], page: str) -> str:
        default = said.get("default")
        if "default" in said and default is None:
            return self._type(_without_null(said), page)
        kind = self._type(said, page)
        is_said = default in (None, "", []) or isinstance(default, dict) or kind == f"`{default}`"
        return kind if is_said else f"{kind} (`{default}`)"

    def _type(self, said: Mapping[str, Any], page: str) -> str:
        if "$ref" in said:
            return self._link(said["$ref"].rsplit("/", 1)[1], page)
        if "anyOf" in said:
            return _either(self._type(one, page) for one in said["anyOf"])
        if "enum" in said:
            return _either(f"`{value}`" for value in said["enum"])
        if isinstance(said.get("type"), list):
            return _either(said["type"])
        if said.get("type") == "array":
            return f"list of {self._type(said.get('items', {}), page)}"
        if isinstance(said.get("additionalProperties"), dict):
            return f"object of {self._type(said['additionalProperties'], page)}"
        return str(said.get("type", "any"))


def _without_null(said: Mapping[str, Any]) -> Mapping[str, Any]:
    if "anyOf" in said:
        return {**said, "anyOf": [one for one in said["anyOf"] if one != {"type": "null"}]}
    if isinstance(said.get("type"), list):
        return {**said, "type": [one for one in said["type"] if one != "null"]}
    return said


def _either(kinds: Iterable[str]) -> str:
    *others, last = dict.fromkeys(kinds)
    return f"{', '.join(others)} or {last}" if others else last


def _same(one: Mapping[str, str], other: Mapping[str, str]) -> int:
    return sum(other.get(name) == meaning for name, meaning in one.items())


def _names_in(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict) and "$ref" in schema:
        yield schema["$ref"].rsplit("/", 1)[1]
    inner = schema.values() if isinstance(schema, dict) else schema
    for part in inner if not isinstance(schema, str | int | float | None) else ():
        yield from _names_in(part)
