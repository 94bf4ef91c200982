"""The terminals of Lark: texts, ranges, regular expressions, and Lark's `common` terminals.

A terminal that cannot be read raises UnsoundGrammar.
"""

from __future__ import annotations

import ast
import re

from engine.grammars.syntax.expression import (
    Expression,
    Foreign,
    Look,
    UnsoundGrammar,
    chars,
    in_order,
    other_than,
    walk,
)
from engine.grammars.syntax.expression import text as literal
from engine.grammars.syntax.patterns.pattern import read_pattern

_NOT_NEW_LINE = other_than(((0x0A, 0x0A),))
_ESCAPE = re.compile(r"\\(?:x[\da-fA-F]{2}|u[\da-fA-F]{4}|U[\da-fA-F]{8}|.)")
_KNOWN_ESCAPE = re.compile(r"""\\(?:[nrtfvab"'\\]|[xuU][\da-fA-F]+)""")
# A case-insensitive regular expression with one of these parts may match letters of many scripts.
_WIDE = re.compile(r"[^\x00-\x7f]|\\[xuU]")
_EITHER_CASE = re.compile(r"\(\?[a-z]*i")
_DECIMAL = r"(?:[0-9]+\.[0-9]*|\.[0-9]+)"
_FLOAT = rf"(?:[0-9]+[eE][+-]?[0-9]+|{_DECIMAL}(?:[eE][+-]?[0-9]+)?)"
COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[a-fA-F0-9]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": _DECIMAL,
    "FLOAT": _FLOAT,
    "SIGNED_FLOAT": f"[+-]?{_FLOAT}",
    "NUMBER": f"(?:{_FLOAT}|[0-9]+)",
    "SIGNED_NUMBER": f"[+-]?(?:{_FLOAT}|[0-9]+)",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\[^\n])*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[_A-Za-z][_A-Za-z0-9]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"//[^\n]*",
    "SQL_COMMENT": r"--[^\n]*",
}


def of_text(spelled: str, flags: str) -> Expression:
    """Read a quoted text. The flag `i` ignores case."""
    text = _unescaped(spelled)
    if not flags:
        return literal(text)
    return in_order([chars(*((ord(one),) * 2 for one in _cases(char))) for char in text])


def _cases(char: str) -> list[str]:
    return [one for one in (char, char.lower(), char.upper()) if len(one) == 1]


def range_of(low: str, high: str) -> Expression:
    """Make an expression of one character in the range of two quoted characters."""
    ends = [_unescaped(one) for one in (low, high)]
    if any(len(end) != 1 for end in ends) or ends[0] > ends[1]:
        raise UnsoundGrammar(f"{low}..{high} is no range")
    return chars((ord(ends[0]), ord(ends[1])))


def _unescaped(spelled: str) -> str:
    return _ESCAPE.sub(_character, spelled[1:-1])


def _character(escape: re.Match[str]) -> str:
    if not _KNOWN_ESCAPE.fullmatch(escape[0]):
        raise UnsoundGrammar(f"the escape `{escape[0]}` is not read")
    return str(ast.literal_eval(f"'{escape[0]}'"))


def of_regex(regex: str, flags: str) -> Expression:
    """Read a regular expression, where `.` is any character but a line break."""
    if "x" in flags or "m" in flags:
        raise UnsoundGrammar(f"the flags `{flags}` of a regular expression are not read")
    if ("i" in flags or _EITHER_CASE.search(regex)) and _WIDE.search(regex):
        raise UnsoundGrammar("letters beyond ASCII in either case are not read")
    kept = "".join(flag for flag in flags if flag in "is")
    found = read_pattern(f"(?{kept}:{regex})" if kept else regex, dot=_NOT_NEW_LINE)
    if any(isinstance(part, Foreign | Look) for part in walk(found)):
        raise UnsoundGrammar("an anchor or a look-ahead in a terminal is not read")
    return found
