"""Grammars in llguidance's Lark dialect, put together rule by rule.

A marker that is a special token of the loaded tokenizer is written as that token. llguidance does
not match a special token by its characters. For llguidance an added token is special if it has the
flag `special` or is in angle brackets.

Whitespace in JSON is limited to a few spaces, or to one line end and an indentation. Without the
limit a small model may write newlines for ever. The engine calls llguidance and finds the grammars
that llguidance refuses.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gateway.turn_formats.turn_format import Schema, ToolSpec, lark_in

ANY_TEXT = "/(?s:.*)/"
MAX_CHARS = 1 << 17  # maximum number of characters of a grammar that an engine accepts
_SPACE = r"[ ]{1,20}|\r?\n[ \t]{0,20}"
_EMBEDDED = "%grammar"
_DEFINED = ("$defs", "definitions")
# name of the definition that holds a tool's whole schema, within a parameter's schema
_ROOT = "tool"
_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


class GrammarTooLong(ValueError):
    """The error for a grammar of more than MAX_CHARS characters."""


class GrammarText:
    """A builder of a grammar. Every method that adds a rule may raise GrammarTooLong."""

    def __init__(self, special_tokens: Mapping[str, int], *, prefix: str = "") -> None:
        """Start a grammar with the special tokens' ids by text. Rule names begin with `prefix`."""
        self._prefix = prefix
        self._ids = dict(special_tokens)
        tokens = sorted(map(re.escape, self._ids), key=len, reverse=True)
        self._tokens = re.compile(f"({'|'.join(tokens)})" if tokens else "(?!)")
        self._rules: list[str] = []
        self._once: dict[str, str] = {}
        # schemas that refer to parts outside of their own definitions, by tool
        self._roots: dict[str, Any] = {}
        self._chars = 0

    def spelled(self, text: str, quote: Callable[[str], str] | None = None) -> str:
        """Write `text` as literals, with each special token in it as a token."""
        parts = [part for part in self._tokens.split(text) if part]
        return " ".join(self._token(part) or (quote or quoted)(part) for part in parts)

    def _token(self, text: str) -> str:
        return f"<[{self._ids[text]}]>" if text in self._ids else ""

    def rule(self, name: str, body: str, *, lazy: bool = False) -> str:
        """Add a rule; return its name: `name` and a number. A name in capitals makes a terminal."""
        prefix = self._prefix.upper() if name.isupper() else self._prefix
        name = f"{prefix}{name}_{len(self._rules)}"
        self._rules.append("")
        self._write(len(self._rules) - 1, f"{name}{'[lazy]' if lazy else ''}: {body}")
        return name

    def rule_once(self, name: str, key: str, write: Callable[[], str]) -> str:
        """Return the name of the rule for `key`. Add the rule on first use.

        `write` returns the rule's body, which may refer to the rule itself.
        """
        if key not in self._once:
            place = len(self._rules)
            self._once[key] = f"{self._prefix}{name}_{place}"
            self._rules.append("")
            self._write(place, f"{self._once[key]}: {write()}")
        return self._once[key]

    def _write(self, place: int, rule: str) -> None:
        self._rules[place] = rule
        self._chars += len(rule)
        if self._chars > MAX_CHARS:
            raise GrammarTooLong(f"the grammar has more than {MAX_CHARS} characters")

    def one_of(self, name: str, bodies: Iterable[str]) -> str:
        """Add a rule with alternative bodies; return its name."""
        return self.rule(name, " | ".join(bodies))

    def up_to(self, marker: str, bounds: Sequence[str] = ()) -> str:
        """Write the grammar of any text up to and including the first `marker`.

        `bounds` are terminals that must all match the text, or one embedded grammar. The embedded
        grammar's texts should not contain the marker.
        """
        if any(map(is_embedded, bounds)):
            body = f"root ::= {bounds[0]} {self.spelled(marker, quoted_in_gbnf)}"
            return self.rule("text", embedded("gbnf", body))
        bodies = list(bounds) or [ANY_TEXT]
        if self._tokens.match(marker):
            text = self.rule("TEXT", " & ".join(bodies)) if bounds else ANY_TEXT
            return f"{text} {self.spelled(marker)}"
        if bounds:
            bodies.append(without(marker))
        return self.rule("up_to", f"({' & '.join(bodies)}) {quoted(marker)}", lazy=True)

    def text_without(self, beginning: str) -> str:
        """Write the grammar of any text whose beginning does not match the regex `beginning`."""
        return self.rule("TEXT", f"{ANY_TEXT} & ~/(?s:{beginning}.*)/")

    def arguments(self, tool: ToolSpec) -> str:
        """Write the grammar of a JSON object that follows the tool's schema."""
        schema = _NO_ARGUMENTS if tool.parameters is None else {"type": "object", **tool.parameters}
        named = schema.get("properties")
        if isinstance(named, dict) and len(named) == 1:
            [(name, only)] = named.items()
            lark = lark_in(only) if isinstance(only, dict) else None
            if lark is not None:
                return self._arguments_of_text(name, lark)
        return self.json(_of_tool(tool, schema), strict=tool.strict)

    def _arguments_of_text(self, name: str, lark: str) -> str:
        gap = self.rule("GAP", f"/{_SPACE}/")
        parts = (quoted("{"), quoted(json.dumps(name)), quoted(":"), embedded("lark_string", lark))
        return self.rule("arguments", f"{f' {gap}? '.join((*parts, quoted('}')))}")

    def value(self, tool: ToolSpec, schema: Schema) -> str:
        """Write the grammar of a parameter's JSON. `schema` may refer to the tool's schema."""
        lark = lark_in(schema)
        if lark is not None:
            return self.rule("string", embedded("lark_string", lark))
        root: Mapping[str, Any] = tool.parameters or {}
        if tool.name not in self._roots:
            self._roots[tool.name] = _rebased(root) if _refers_elsewhere(root) else None
        rebased = self._roots[tool.name]
        if rebased is not None:
            whole = {_DEFINED[0]: {_ROOT: rebased}, **_rebased(schema)}
        else:
            whole = {**{key: root[key] for key in _DEFINED if key in root}, **schema}
        return self.json(_of_tool(tool, whole), strict=tool.strict)

    def json(self, schema: Schema, *, strict: bool) -> str:
        """Write the grammar of JSON that follows `schema`.

        Unless `strict`, llguidance ignores the keywords that it does not know.
        """
        options = {"whitespace_pattern": _SPACE, "lenient": not strict}
        spelled = json.dumps({**schema, "x-guidance": options}, ensure_ascii=False)
        return self.rule("json", f"%json {spelled}")

    def source(self, start: str) -> str:
        """Write the whole grammar. `start` is the body of its start rule."""
        return "\n".join([f"start: {start}", *self._rules, ""])


def _of_tool(tool: ToolSpec, schema: Schema) -> dict[str, Any]:
    return {**schema, "$comment": f"tool {tool.name}"}


def _refers_elsewhere(schema: object) -> bool:
    """Return whether `schema` refers to a part of the tool's schema outside its definitions."""
    if isinstance(schema, list):
        return any(map(_refers_elsewhere, schema))
    if not isinstance(schema, Mapping):
        return False
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        return not reference.startswith(tuple(f"#/{key}/" for key in _DEFINED))
    return any(map(_refers_elsewhere, schema.values()))


def _rebased(schema: Any) -> Any:
    """Rewrite references to the tool's schema to point into the definition `_ROOT`."""
    if isinstance(schema, list):
        return [_rebased(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    moved = {key: _rebased(value) for key, value in schema.items()}
    reference = moved.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = f"#/{_DEFINED[0]}/{_ROOT}{reference.removeprefix('#')}"
    return moved


def embedded(kind: str, text: str) -> str:
    """Write a grammar of another kind as a part of a Lark or GBNF grammar."""
    return f"{_EMBEDDED} {json.dumps([kind, text], ensure_ascii=False)}"


def is_embedded(bound: str) -> bool:
    """Return whether the bound is an embedded grammar, not a terminal."""
    return bound.startswith(_EMBEDDED)


def quoted(text: str) -> str:
    """Write `text` as a Lark literal."""
    return json.dumps(text, ensure_ascii=False)


def quoted_in_gbnf(text: str) -> str:
    """Write `text` as a GBNF literal."""
    escaped = re.sub(r'[\x00-\x1f"\\]', lambda found: f"\\x{ord(found[0]):02x}", text)
    return f'"{escaped}"'


def without(text: str) -> str:
    """Write the terminal of all texts that do not contain `text`."""
    return f"~/(?s:.*{_exactly(text)}.*)/"


def _exactly(text: str) -> str:
    return re.escape(text).replace("\\\n", "\\n").replace("/", "\\/")


def repeated(call: str, separator: str, at_least: int, at_most: int | None) -> str:
    """Write `call` repeated `at_least` to `at_most` times, with `separator` between calls."""
    if at_most == 1:
        return call
    most = "" if at_most is None else at_most - 1
    return f"{call} ({separator} {call}){{{at_least - 1},{most}}}"


def checked(tools: Sequence[ToolSpec], at_least: int, at_most: int | None) -> None:
    """Raise ValueError if there is no tool, `at_least` < 1, or `at_most` < `at_least`."""
    if not tools or at_least < 1 or (at_most is not None and at_most < at_least):
        raise ValueError("a turn of calls needs a tool and at least one call")


def in_order(parts: Sequence[tuple[str, bool]], separator: str, grammar: GrammarText) -> str:
    """Write parts in order. A part is a rule body, and whether it is required."""
    first, others = '""', '""'
    for body, is_required in reversed(parts):
        others = grammar.rule("rest", others)
        found = f"{body} {others}"
        first = found if is_required else f"{found} | {grammar.rule('first', first)}"
        others = f"{separator} {found}" if is_required else f"{separator} {found} | {others}"
    return grammar.rule("parts", first)
