"""The test of whether llguidance can follow strings with a pattern, a format and a length.

llguidance intersects the three, and gives up if this takes too long. For example, a host name's
pattern with at most 253 characters takes too long to compile. A hundred words with at most 5,000
characters take too long at the string's first mask, which may be in the middle of an answer. The
strings of a JSON schema are therefore tried separately, before the answer.
"""

from __future__ import annotations

from collections.abc import Callable

from llguidance import LLMatcher

from engine.grammars.limits import MASK_S, parser_limits
from engine.grammars.random_walk import walk_at_random
from engine.grammars.schemas.json_value import JsonObject, canonical
from engine.grammars.vocabulary import Vocabulary

LENGTHS = {"minLength", "maxLength"}
# A test: are masks made quickly enough for strings with the keywords of this JSON schema?
CanBeHeld = Callable[[JsonObject], bool]
_KEYWORDS = {"pattern", "format", *LENGTHS}
_NUM_STEPS = 8  # number of tokens to try; later masks do not take longer


def can_be_compiled(schema: JsonObject) -> bool:
    """Return whether llguidance can compile the string keywords in `schema`."""
    return not (LENGTHS & schema.keys()) or not LLMatcher.validate_grammar(
        _grammar(schema), limits=parser_limits()
    )


def held_over(vocabulary: Vocabulary) -> CanBeHeld:
    """Return a test of whether masks over this vocabulary are made quickly enough for strings.

    The test takes a JSON schema with string keywords, and caches its results.
    """
    tried: dict[str, bool] = {}

    def can_be_held(schema: JsonObject) -> bool:
        grammar = _grammar(schema)
        if grammar not in tried:
            matcher = LLMatcher(vocabulary.tokens, grammar, log_level=0, limits=parser_limits())
            is_quick = walk_at_random(matcher, _NUM_STEPS) <= MASK_S
            tried[grammar] = is_quick and not matcher.is_error()
        return tried[grammar]

    return can_be_held


def _grammar(schema: JsonObject) -> str:
    said = {name: schema[name] for name in _KEYWORDS & schema.keys()}
    return LLMatcher.grammar_from_json_schema(canonical({"type": "string", **said}))
