"""The test of whether the library can hold a text to a pattern and a length together.

It intersects the two, and gives up where that takes it too long: a host name's pattern and 253
characters are too much.
"""

from __future__ import annotations

from llguidance import LLMatcher

from engine.grammars.limits import parser_limits
from engine.grammars.schemas.json_value import JsonObject, canonical

LENGTHS = {"minLength", "maxLength"}


def can_be_held(schema: JsonObject) -> bool:
    """Return whether the pattern of `schema` can be held with its lengths."""
    said = {name: schema[name] for name in LENGTHS & schema.keys()}
    if not said:
        return True
    text = canonical({"type": "string", "pattern": schema["pattern"], **said})
    return not LLMatcher.validate_grammar(
        LLMatcher.grammar_from_json_schema(text), limits=parser_limits()
    )
