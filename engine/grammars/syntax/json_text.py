r"""The expressions of texts inside a JSON string, where quotes and control characters are escaped.

    "a\n"  is  "\"" "a" ("\\n" | "\\u000a" | "\\u000A") "\""

A character may have several spellings in JSON.
"""

from __future__ import annotations

from engine.grammars.syntax.expression import (
    All,
    Chars,
    Expression,
    Ranges,
    UnsoundGrammar,
    chars,
    in_order,
    one_of,
    other_than,
    text,
    with_leaves,
)

_QUOTE = text('"')
_NUL = (0, 0)
_RAW = other_than(((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)))  # characters that JSON need not escape
_SHORT = {0x22: '"', 0x5C: "\\", 0x08: "b", 0x0C: "f", 0x0A: "n", 0x0D: "r", 0x09: "t"}


def as_string(expression: Expression) -> Expression:
    """Return an expression of JSON strings, with quotes, whose values match `expression`."""
    return All((_QUOTE, escaped(expression), _QUOTE))


def escaped(expression: Expression) -> Expression:
    """Return an expression of the texts of `expression`, escaped as inside a JSON string.

    Raises UnsoundGrammar. Only characters that must be escaped are escaped.
    """
    return with_leaves(expression, _escaped)


def without_wide_controls(expression: Expression) -> Expression:
    """Return `expression` in a form that llguidance escapes correctly.

    If a class has all control characters, llguidance allows any escape after a backslash. NUL is
    therefore removed from such a class.
    """
    return with_leaves(expression, _without_nul)


def _escaped(part: Expression) -> Expression:
    if not isinstance(part, Chars):
        return part
    if part.spelled:
        raise UnsoundGrammar("a class of Unicode properties is not read here")
    ways = [text(f"\\{mark}") for code, mark in _SHORT.items() if _has(part, code)]
    ways += filter(None, (_by_number(part, high) for high in range(2)))
    raw = chars(*_common(part.ranges, _RAW.ranges))
    return one_of([*([raw] if raw.ranges else []), *ways])


def _by_number(part: Chars, high: int) -> Expression | None:
    r"""Return the escapes `\u00HL` with `high` as H, for the control characters of `part`."""
    digits = [f"{low:{form}}" for low in range(16) if _has(part, 16 * high + low) for form in "xX"]
    if not digits:
        return None
    return in_order([text(f"\\u00{high}"), one_of(map(text, digits))])


def _without_nul(part: Expression) -> Expression:
    if not isinstance(part, Chars):
        return part
    if part.spelled:
        return Chars(part.ranges, f"[{part.spelled}&&[^\\x00]]")
    if all(_has(part, code) for code in (0x22, 0x5C)) or not _has(part, 0):
        return part
    return chars(*_common(part.ranges, other_than((_NUL,)).ranges))


def _has(part: Chars, code: int) -> bool:
    return any(low <= code <= high for low, high in part.ranges)


def _common(one: Ranges, other: Ranges) -> Ranges:
    pairs = ((max(a, c), min(b, d)) for a, b in one for c, d in other)
    return tuple((low, high) for low, high in pairs if low <= high)
