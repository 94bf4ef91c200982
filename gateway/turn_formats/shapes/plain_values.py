"""Grammars of values that are written without quotes and follow a schema.

A text obeys its schema's limits, and never contains the marker that ends it. Any other value is
JSON.
"""

import json
from collections.abc import Iterator
from itertools import groupby

from msgspec import Struct

from gateway.turn_formats.grammar import GrammarText, is_embedded
from gateway.turn_formats.shapes.schemas import alternatives, type_names, types_of, words_of
from gateway.turn_formats.shapes.text_bounds import bounds_of
from gateway.turn_formats.turn_format import Schema, ToolSpec

OTHERS = frozenset(("array", "boolean", "integer", "null", "number", "object"))


class ValueTags(Struct, frozen=True):
    """The tags and quotes around a value."""

    tail: str
    # pairs of a JSON type ("" for all other types) and the tag before values of this type
    typed: tuple[tuple[str, str], ...] = ()
    quote: tuple[str, str] | None = None  # markers around a text that contains `<`

    def type_tag(self, kind: str) -> str:
        """Return the tag before a value of the JSON type `kind`, or ""."""
        tags = dict(self.typed)
        return tags.get(kind, tags.get("", ""))


def plain_value(grammar: GrammarText, tool: ToolSpec, schema: Schema, tags: ValueTags) -> str:
    """Write the grammar of a value that follows a parameter's `schema`, and of the tag after it."""
    types = types_of(schema, tool.parameters)
    if types and "string" not in types and not tags.typed:
        return f"{grammar.value(tool, schema)} {grammar.spelled(tags.tail)}"
    ways = [
        way
        for one in alternatives(schema, tool.parameters)
        for way in _ways(grammar, tool, one, tags)
    ]
    return grammar.one_of("value", ways)


def _ways(grammar: GrammarText, tool: ToolSpec, schema: Schema, tags: ValueTags) -> Iterator[str]:
    words = words_of(schema)
    if words is not None:
        for word in words:
            spelled = word if isinstance(word, str) else json.dumps(word, ensure_ascii=False)
            yield grammar.spelled(tags.type_tag(type_names(word)[0]) + spelled + tags.tail)
        return
    types = types_of(schema)
    if not types or "string" in types:
        bounds = bounds_of(schema)
        yield from _texts(grammar, bounds, tags)
        if not (bounds or tags.typed or tags.quote):  # nothing is limited, so any value is allowed
            return
    others = (types or (OTHERS if tags.typed else types)) - {"string"}
    for opens, kinds in groupby(sorted(others, key=tags.type_tag), tags.type_tag):
        value = grammar.value(tool, {**schema, "type": sorted(kinds)})
        yield f"{grammar.spelled(opens)} {value} {grammar.spelled(tags.tail)}"


def _texts(grammar: GrammarText, bounds: list[str], tags: ValueTags) -> Iterator[str]:
    head = grammar.spelled(tags.type_tag("string"))
    if tags.quote is None:
        yield f"{head} {grammar.up_to(tags.tail, bounds)}"
        return
    opens, closes = tags.quote
    yield f"{grammar.spelled(opens)} {grammar.up_to(closes + tags.tail, bounds)}"
    yield grammar.up_to(
        tags.tail, bounds if any(map(is_embedded, bounds)) else [*bounds, "/[^<]*/"]
    )
