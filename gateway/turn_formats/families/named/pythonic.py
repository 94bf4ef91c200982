"""Llama 3.2, Llama 4, LFM2, OLMo 3, and other models: Python calls.

    [get_weather(city="Oslo", days=3), get_time()]

The list begins the turn. Llama 4 writes it between `<|python_start|>` and `<|python_end|>`. LFM2
writes it anywhere in the turn, between `<|tool_call_start|>` and `<|tool_call_end|>`. Other models
write it if their prompts ask for it. OLMo 3 writes lines between `<function_calls>` and
`</function_calls>`, with values as JSON. Each argument is sent as JSON, when it is whole.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from gateway.turn_formats.calls import CallReader
from gateway.turn_formats.grammar import ANY_TEXT, GrammarText, checked, in_order, repeated
from gateway.turn_formats.shapes.block_format import BlockFormat, UnmarkedText
from gateway.turn_formats.shapes.python_calls import MarkedPythonicReader, PythonicReader
from gateway.turn_formats.shapes.schemas import properties_of, required_of, words_of
from gateway.turn_formats.turn_format import Schema, ToolSpec

_START, _END = "<|python_start|>", "<|python_end|>"
_LFM2, _LFM2_END = "<|tool_call_start|>", "<|tool_call_end|>"
_OLMO3, _OLMO3_END = "<function_calls>", "</function_calls>"
_TURN = re.compile(rf"\s*({re.escape(_START)})?\[\w+\(")
_BETWEEN = '", "'

# LFM2's templates that show no calls contain one of these texts
_LFM2_TOOLS = ("<|tool_list_start|>", "List of tools: [")
_ANY_PARAMETER = '/[A-Za-z_][A-Za-z0-9_]{0,63}/ "="'


class PythonicFormat(UnmarkedText):
    """The `ToolFormat` of calls in Python's syntax."""

    name: ClassVar[str] = "pythonic"
    markers: ClassVar[tuple[str, ...]] = (_START, _END)
    call_marks: ClassVar[tuple[str, ...]] = ()

    def is_in(self, template: str) -> bool:
        return "[func_name1(" in template or bool(_TURN.match(template))

    def parser(self, tools: Sequence[ToolSpec]) -> CallReader:
        return PythonicReader(tools, _START, _END)

    def call_grammar(
        self, tools: Sequence[ToolSpec], *, at_least: int = 1, at_most: int | None = None
    ) -> str:
        checked(tools, at_least, at_most)
        grammar = GrammarText(self.special_tokens)
        call = _call(grammar, tools)
        return grammar.source(f'"[" {repeated(call, _BETWEEN, at_least, at_most)} "]"')

    def text_grammar(self, tools: Sequence[ToolSpec]) -> str:
        """Write the grammar of calls, or of text that does not begin like a tool's call."""
        grammar = GrammarText(self.special_tokens)
        if not tools:
            return grammar.source(ANY_TEXT)
        names = "|".join(re.escape(tool.name) for tool in tools)
        text = grammar.text_without(rf"\s*({re.escape(_START)}\s*)?\[\s*({names})\s*\(")
        # The bracket and the name are one literal because the longest match wins. A text whose
        # beginning is not refused yet would be a longer match than the bracket alone.
        first, other = _call(grammar, tools, "["), _call(grammar, tools)
        return grammar.source(f'{first} ({_BETWEEN} {other})* "]" | {text}')


class Lfm2Format(BlockFormat):
    """The `ToolFormat` of LFM2 and LFM2.5."""

    name: ClassVar[str] = "lfm2"
    markers: ClassVar[tuple[str, ...]] = (_LFM2, _LFM2_END)
    call_marks: ClassVar[tuple[str, ...]] = (_LFM2,)
    trigger = _LFM2
    opens = "["
    closes = "]" + _LFM2_END
    between_calls = ", "

    def is_in(self, template: str) -> bool:
        return _LFM2 in template or any(tools in template for tools in _LFM2_TOOLS)

    def parser(self, tools: Sequence[ToolSpec]) -> CallReader:
        return MarkedPythonicReader(tools, _LFM2, _LFM2_END)

    def call(self, grammar: GrammarText, tool: ToolSpec) -> str:
        return _call(grammar, [tool])

    def written(self, name: str, arguments: Mapping[str, Any]) -> str | None:
        return _written(name, arguments, _literal)


class Olmo3Format(BlockFormat):
    """The `ToolFormat` of OLMo 3."""

    name: ClassVar[str] = "olmo3"
    markers: ClassVar[tuple[str, ...]] = (_OLMO3, _OLMO3_END)
    call_marks: ClassVar[tuple[str, ...]] = (_OLMO3,)
    trigger = _OLMO3
    closes = _OLMO3_END
    between_calls = "\n"

    def is_in(self, template: str) -> bool:
        return _OLMO3 in template

    def parser(self, tools: Sequence[ToolSpec]) -> CallReader:
        return MarkedPythonicReader(tools, _OLMO3, _OLMO3_END, in_list=False)

    def call(self, grammar: GrammarText, tool: ToolSpec) -> str:
        return _call(grammar, [tool], as_json=True)

    def written(self, name: str, arguments: Mapping[str, Any]) -> str | None:
        return _written(name, arguments, _json)


def _written(name: str, arguments: Mapping[str, Any], spell: Callable[[Any], str]) -> str:
    return f"{name}({', '.join(f'{key}={spell(value)}' for key, value in arguments.items())})"


def _literal(value: Any) -> str:
    """Write a value as LFM2's template does: None, True and False, and all others as JSON."""
    return repr(value) if value is None or isinstance(value, bool) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _call(
    grammar: GrammarText, tools: Sequence[ToolSpec], opens: str = "", *, as_json: bool = False
) -> str:
    heads = [(grammar.spelled(f"{opens}{tool.name}("), tool) for tool in tools]
    ways = [f'{head} {_arguments(grammar, tool, as_json=as_json)} ")"' for head, tool in heads]
    return grammar.one_of("call", ways)


def _arguments(grammar: GrammarText, tool: ToolSpec, *, as_json: bool) -> str:
    properties = properties_of(tool)
    if properties is None:
        one = grammar.rule("any", f"{_ANY_PARAMETER} {grammar.json({}, strict=False)}")
        return f"({repeated(one, _BETWEEN, 1, None)})?"
    required = required_of(tool)
    parts = [
        (
            f"{grammar.spelled(f'{name}=')} {_value(grammar, tool, schema, as_json=as_json)}",
            name in required,
        )
        for name, schema in properties.items()
    ]
    return in_order(parts, _BETWEEN, grammar)


def _value(grammar: GrammarText, tool: ToolSpec, schema: Schema, *, as_json: bool) -> str:
    if not as_json and schema.get("type") == "boolean" and words_of(schema) is None:
        return '("True" | "False")'
    return grammar.value(tool, schema)
