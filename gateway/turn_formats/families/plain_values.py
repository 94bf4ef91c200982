"""Grammars of values that are written without quotes and follow a schema.

A text has its bounds, and never the mark that ends it. Any other value is JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from gateway.turn_formats.families.schemas import alternatives, types_of, words_of
from gateway.turn_formats.families.text_bounds import bounds_of
from gateway.turn_formats.grammar import GrammarText
from gateway.turn_formats.turn_format import Schema, ToolSpec


def plain_value(grammar: GrammarText, tool: ToolSpec, schema: Schema, tail: str) -> str:
    """Write the grammar of a value that follows a parameter's `schema`, and of its end `tail`."""
    types = types_of(schema, tool.parameters)
    if types and "string" not in types:
        return f"{grammar.value(tool, schema)} {grammar.spelled(tail)}"
    ways = [
        way
        for one in alternatives(schema, tool.parameters)
        for way in _ways(grammar, tool, one, tail)
    ]
    return grammar.one_of("value", ways)


def _ways(grammar: GrammarText, tool: ToolSpec, schema: Schema, tail: str) -> Iterator[str]:
    words = words_of(schema)
    if words is not None:
        for word in words:
            spelled = word if isinstance(word, str) else json.dumps(word, ensure_ascii=False)
            yield grammar.spelled(spelled + tail)
        return
    types = types_of(schema)
    others = sorted(types - {"string"})
    if not types or "string" in types:
        bounds = bounds_of(schema)
        yield grammar.up_to(tail, bounds)
        if not bounds:  # any text, which includes all other values
            return
    if others:
        yield f"{grammar.value(tool, {**schema, 'type': others})} {grammar.spelled(tail)}"
