"""The test of whether llguidance can enforce a pattern and a length together.

llguidance intersects the two, and gives up if this takes too long. A host name's pattern with 253
characters takes too long.
"""

from __future__ import annotations

from llguidance import LLMatcher

from engine.grammars.limits import parser_limits
from engine.grammars.schemas.json_value import JsonObject, canonical

LENGTHS = {"minLength", "maxLength"}


def can_be_held(schema: JsonObject) -> bool:
    """Return whether llguidance can enforce the pattern of `schema` with its lengths."""
    said = {name: schema[name] for name in LENGTHS & schema.keys()}
    if not said:
        return True
    text = canonical({"type": "string", "pattern": schema["pattern"], **said})
    return not LLMatcher.validate_grammar(
        LLMatcher.grammar_from_json_schema(text), limits=parser_limits()
    )
