"""The conversion of a Python literal to JSON, without evaluating it.

A literal has strings, numbers, True, False, None, JSON's own words, lists, tuples, sets, and dicts
with strings as keys. Numbers may have leading zeros. Work is linear in the text.
"""

import re

import msgspec

from gateway.turn_formats.shapes.strings import string

_TOKEN = re.compile(
    r"""(?P<text>'''(?:[^\\]|\\.)*?'''|\"\"\"(?:[^\\]|\\.)*?\"\"\"|'(?:[^\\']|\\.)*'|"(?:[^\\"]|\\.)*")"""
    r"|(?P<word>[-+.\w]+)|(?P<mark>[][(){},:])|(?P<space>\s+)",
    re.DOTALL,
)
_ESCAPE = re.compile(
    r"\\(\r?\n|[\\'\"abfnrtv]|[0-7]{1,3}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U000[0-9a-fA-F]{5})"
)
_WORDS = {"True": "true", "False": "false", "None": "null"}
_BRACKETS = {"(": "[", ")": "]"}
_NUMBER = re.compile(r"([-+]?)0*((?:[1-9][0-9]*|0)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)")
_LETTERS = dict(zip("\\'\"abfnrtv", "\\'\"\a\b\f\n\r\t\v", strict=True))


def as_json(literal: str) -> str | None:
    """Convert a Python literal to JSON; return None for an invalid literal."""
    parts: list[str] = []
    sets: list[int] = []  # for each open brace: its place in `parts`, or 0 after a colon
    at = 0
    kind: str | None = None  # group of the last token that is no space
    while at < len(literal):
        found = _TOKEN.match(literal, at)
        if found is None or found.lastgroup == kind == "word":  # two words are no literal
            return None
        at = found.end()
        kind = kind if found.lastgroup == "space" else found.lastgroup
        _add(parts, found)
        _note_set(parts, found[0], sets)
    written = "".join(parts)
    try:
        msgspec.json.decode(written)
    except (msgspec.DecodeError, RecursionError):
        return None
    return written


def _add(parts: list[str], found: re.Match[str]) -> None:
    token = found[0]
    if found.lastgroup == "text":
        parts.append(string(_text(token)))
    elif found.lastgroup == "word":
        parts.append(_WORDS.get(token) or _number(token))
    elif found.lastgroup == "mark":
        if token in ")]}" and parts and parts[-1] == ", ":
            parts.pop()  # drops a trailing comma, as in a tuple of one item
        parts.append({",": ", ", ":": ": "}.get(token, _BRACKETS.get(token, token)))


def _note_set(parts: list[str], token: str, braces: list[int]) -> None:
    """Write a set as a list when its closing brace is read."""
    if token == "{":
        braces.append(len(parts))
    elif token == ":" and braces:
        braces[-1] = 0
    elif token == "}" and braces:
        opened = braces.pop()
        if opened and len(parts) > opened + 1:
            parts[opened - 1], parts[-1] = "[", "]"


def _number(token: str) -> str:
    found = _NUMBER.fullmatch(token)
    return token if found is None else f"{found[1].removeprefix('+')}{found[2]}"


def unquoted(literal: str) -> str:
    """Return the text between the quotes of a literal. It may contain unescaped quotes.

    A literal without quotes is returned as it is.
    """
    is_quoted = len(literal) > 1 and literal[0] == literal[-1] and literal[0] in "'\""
    return _ESCAPE.sub(_unescaped, literal[1:-1]) if is_quoted else literal


def _text(token: str) -> str:
    size = 3 if token.startswith(("'''", '"""')) and len(token) >= 6 else 1
    return _ESCAPE.sub(_unescaped, token[size:-size])


def _unescaped(found: re.Match[str]) -> str:
    escape = found[1]
    if escape in _LETTERS:
        return _LETTERS[escape]
    if escape[0] in "xuU":
        code = int(escape[1:], 16)
        return chr(code) if code <= 0x10FFFF else found[0]
    return "" if escape.endswith("\n") else chr(int(escape, 8))
