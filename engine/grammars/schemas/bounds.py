"""The conversion of bounds on numbers to bounds that llguidance can enforce.

llguidance reads a bound as a float and converts it to a 64-bit integer. It therefore fails for the
minimum of an int64 or a float32, which generators of JSON schemas write. Such a bound is replaced
by a slightly tighter bound. A bound of nineteen digits or more gets a second bound, because
llguidance fails for it too.
"""

from __future__ import annotations

from engine.grammars.schemas.json_value import JsonObject, JsonValue

MOST = 2**63 - 1024  # largest float below 2**63
LEAST = 1e-18  # smaller bounds would be written with hundreds of zeros
_FAR = 10**18  # a bound of nineteen digits or more needs a second bound
_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


def with_close_bounds(schema: JsonObject) -> JsonObject:
    """Return the JSON schema with bounds on numbers that llguidance accepts."""
    closer = {name: _raised(schema[name]) for name in _LOWER if name in schema}
    closer |= {name: _negated(_raised(_negated(schema[name]))) for name in _UPPER if name in schema}
    return _with_second(schema | closer)


def _with_second(schema: JsonObject) -> JsonObject:
    lower, upper = (
        [bound for name in names if isinstance(bound := schema.get(name), int | float)]
        for names in (_LOWER, _UPPER)
    )
    if not upper and lower and _FAR <= max(lower) <= MOST:
        return schema | {"maximum": MOST}
    if not lower and upper and -MOST <= min(upper) <= -_FAR:
        return schema | {"minimum": -MOST}
    return schema


def _raised(bound: JsonValue) -> JsonValue:
    if not isinstance(bound, int | float) or isinstance(bound, bool):
        return bound
    if bound < -MOST:
        return -MOST
    return LEAST if 0 < bound < LEAST else bound


def _negated(bound: JsonValue) -> JsonValue:
    return -bound if isinstance(bound, int | float) and not isinstance(bound, bool) else bound
