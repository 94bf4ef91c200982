r"""A reader of ECMA 262 regular expressions, with additions of other dialects.

    ^(?<name>[^()[\]]+)\/\d{2,}$

As in ECMA 262, classes cannot be nested, and `\d` and `\w` match only ASCII. The reader also
accepts `(?P<name>...)`, `(?i)`, `(?s)`, `\A`, `\Z`, `\x{...}`, `[[:alpha:]]` and `{,n}`.
Look-behinds `(?<=...)` and back-references `\1` are errors.

Elsewhere: the meaning of anchors (`anchors.py`).
"""

from __future__ import annotations

import re

from engine.grammars.syntax.expression import (
    EMPTY,
    MAX_CODE_POINT,
    Chars,
    Expression,
    Foreign,
    Look,
    Ranges,
    Repeat,
    UnsoundGrammar,
    chars,
    in_order,
    one_of,
    other_than,
    spelled_ranges,
)
from engine.grammars.syntax.patterns.letter_cases import other_cases

START, END = Foreign("^"), Foreign("$")
_ANY = chars((0, MAX_CODE_POINT))
_LINE_ENDS: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
_DIGIT: Ranges = ((0x30, 0x39),)
_LETTERS: Ranges = ((0x41, 0x5A), (0x61, 0x7A))
_SPACE: Ranges = (
    *((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
)
_SETS: dict[str, Ranges] = {"d": _DIGIT, "w": (*_DIGIT, *_LETTERS, (0x5F, 0x5F)), "s": _SPACE}
_POSIX: dict[str, Ranges] = {
    "alpha": _LETTERS,
    "digit": _DIGIT,
    "alnum": (*_DIGIT, *_LETTERS),
    "upper": ((0x41, 0x5A),),
    "lower": ((0x61, 0x7A),),
    "space": ((0x09, 0x0D), (0x20, 0x20)),
    "xdigit": (*_DIGIT, (0x41, 0x46), (0x61, 0x66)),
    "punct": ((0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E)),
    "word": _SETS["w"],
}
_CONTROL = {"n": 0x0A, "r": 0x0D, "t": 0x09, "v": 0x0B, "f": 0x0C, "0": 0}
_CODE = re.compile(
    r"x(?P<x>[0-9A-Fa-f]{2})|u(?P<u>[0-9A-Fa-f]{4})|U(?P<U>[0-9A-Fa-f]{8})"
    r"|[xu]\{(?P<braced>[0-9A-Fa-f]{1,8})\}|c(?P<control>[A-Za-z])"
)
_LOW_HALF = re.compile(r"\\u(?P<u>[dD][c-fC-F][0-9A-Fa-f]{2})")
_PROPERTY = re.compile(r"[pP](?:\{[\w=: -]{1,60}\}|[A-Z])")
_POSIX_CLASS = re.compile(r"\[:(?P<no>\^?)(?P<name>[a-z]+):\]")
_COUNT = re.compile(
    r"(?P<sign>[*+?])|\{(?:(?P<exactly>[0-9]+)|(?P<least>[0-9]*),(?P<most>[0-9]*))\}"
)
_BOUNDS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_GROUP = re.compile(
    r"\?(?:P?<(?P<name>[^\W0-9][\w$]*)>|(?P<flags>[a-z]*(?:-[a-z]+)?)(?P<end>[:)]))"
)
_OTHER_GROUPS = {
    **dict.fromkeys(("?<=", "?<!"), "a look-behind"),
    "?>": "an atomic group",
}
_FLAGS = "imsu"
MAX_TIMES = 100_000  # maximum number of repetitions of a part


def read_pattern(pattern: str, dot: Chars | None = None) -> Expression:
    """Read a pattern as an expression, in which `START` and `END` stand for anchors.

    Raises UnsoundGrammar. `dot` is the meaning of `.` in a dialect that differs from ECMA 262.
    """
    return _Reader(pattern, dot or other_than(_LINE_ENDS)).expression()


class _Reader:
    def __init__(self, pattern: str, dot: Chars) -> None:
        self._text = pattern
        self._dot = dot
        self._at = 0
        self._flags = frozenset[str]()

    def expression(self) -> Expression:
        found = self._alternatives()
        if self._at < len(self._text):
            raise self._wrong("a parenthesis closes nothing")
        return found

    def _alternatives(self) -> Expression:
        found = [self._sequence()]
        while self._take("|"):
            found.append(self._sequence())
        return one_of(found)

    def _sequence(self) -> Expression:
        parts: list[Expression] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            parts.append(self._counted(self._part()))
        return in_order(parts)

    def _counted(self, part: Expression) -> Expression:
        while (count := _COUNT.match(self._text, self._at)) is not None and count[0] != "{,}":
            self._at = count.end()
            part = Repeat(part, *self._bounds(count))
            if self._take("+"):
                raise self._wrong("a possessive quantifier is not supported")
            self._take("?")  # a lazy quantifier matches the same texts as a greedy one
        return part

    def _bounds(self, count: re.Match[str]) -> tuple[int, int | None]:
        if count["sign"]:
            return _BOUNDS[count["sign"]]
        least = int(count["exactly"] or count["least"] or 0)
        most = least if count["exactly"] else int(count["most"]) if count["most"] else None
        if max(least, most or 0) > MAX_TIMES or (most is not None and most < least):
            raise self._wrong("a repetition has bounds that it cannot have")
        return least, most

    def _part(self) -> Expression:
        char = self._text[self._at]
        self._at += 1
        match char:
            case "(":
                return self._group()
            case "[":
                return self._class()
            case ".":
                return _ANY if "s" in self._flags else self._dot
            case "^":
                return self._anchor(START)
            case "$":
                return self._anchor(END)
            case "*" | "+" | "?":
                raise self._wrong("a quantifier has nothing before it")
            case "\\":
                return self._escape()
        return self._cased(chars((ord(char), ord(char))))

    def _anchor(self, anchor: Foreign) -> Expression:
        if "m" in self._flags:
            raise self._wrong("an anchor of lines, (?m), is not supported")
        return anchor

    def _group(self) -> Expression:
        flags = self._flags
        if self._text.startswith("?#", self._at):
            self._at = self._text.find(")", self._at) + 1 or len(self._text)
            return EMPTY
        is_negative = self._is_at("?!")
        look = self._take("?=") or self._take("?!")
        if not look and self._is_at("?"):
            opened = _GROUP.match(self._text, self._at)
            if opened is None:
                raise self._wrong(f"{self._kind_of_group()} is not supported")
            self._at = opened.end()
            if opened["flags"]:
                self._set(opened["flags"])
            if opened["end"] == ")":
                return EMPTY  # an inline flag applies to the rest of its group
        inner = self._alternatives()
        if not self._take(")"):
            raise self._wrong("unclosed group")
        self._flags = flags
        return Look(inner, is_negative=is_negative) if look else inner

    def _kind_of_group(self) -> str:
        for opening, kind in _OTHER_GROUPS.items():
            if self._is_at(opening):
                return kind
        return "a group of this kind"

    def _set(self, flags: str) -> None:
        more, _, fewer = flags.partition("-")
        if not set(more + fewer) <= set(_FLAGS):
            raise self._wrong(f"the flags (?{flags}) are not supported")
        self._flags = (self._flags | set(more)) - set(fewer)

    def _escape(self) -> Expression:
        if self._at == len(self._text):
            raise self._wrong("nothing follows the backslash")
        char = self._text[self._at]
        if char in "AZz":
            self._at += 1
            return START if char == "A" else END
        if char in "bB" or char in "123456789" or (char == "k" and self._is_at("k<")):
            kind = "a word boundary" if char in "bB" else "a reference to a group"
            raise self._wrong(f"{kind}, \\{char}, is not supported")
        return self._cased(self._escaped_chars())

    def _escaped_chars(self) -> Chars:
        char = self._text[self._at]
        if char.lower() in _SETS:
            self._at += 1
            ranges = _SETS[char.lower()]
            return chars(*ranges) if char.islower() else other_than(ranges)
        prop = _PROPERTY.match(self._text, self._at)
        if prop is not None:
            self._at = prop.end()
            return Chars(_ANY.ranges, f"\\{prop[0]}")
        code = self._code()
        return chars((code, code))

    def _code(self) -> int:
        found = _CODE.match(self._text, self._at)
        if found is None:
            char = self._text[self._at]
            self._at += 1
            return _CONTROL.get(char, ord(char))
        self._at = found.end()
        if found["control"]:
            return ord(found["control"]) % 32
        code = int(found["x"] or found["u"] or found["U"] or found["braced"], 16)
        low = _LOW_HALF.match(self._text, self._at)
        if 0xD800 <= code < 0xDC00 and low is not None:
            self._at = low.end()
            code = 0x10000 + ((code - 0xD800) << 10) + (int(low["u"], 16) - 0xDC00)
        if code > MAX_CODE_POINT:
            raise self._wrong("there is no such character")
        return code

    def _class(self) -> Chars:
        is_negated = self._take("^")
        ranges, spelled = list[tuple[int, int]](), list[str]()
        while not self._take("]"):
            if self._at == len(self._text):
                raise self._wrong("unclosed character class")
            one = self._class_item()
            ranges.extend(one.ranges)
            spelled.append(one.spelled or spelled_ranges(one.ranges))
        if any("\\p" in one or "\\P" in one for one in spelled):
            return Chars(_ANY.ranges, f"[{'^' if is_negated else ''}{''.join(spelled)}]")
        found = self._cased(chars(*ranges))
        return other_than(found.ranges) if is_negated else found

    def _class_item(self) -> Chars:
        """Read one item of a class: a character, a range, or an escape for several characters."""
        posix = _POSIX_CLASS.match(self._text, self._at)
        if posix is not None and posix["name"] in _POSIX:
            self._at = posix.end()
            ranges = _POSIX[posix["name"]]
            return other_than(ranges) if posix["no"] else chars(*ranges)
        low = self._class_char()
        is_range = self._is_at("-") and not self._is_at("-]") and len(self._text) > self._at + 1
        if not is_range or not _is_one(low):
            return low
        self._at += 1
        high = self._class_char()
        if not _is_one(high):  # the hyphen is literal here
            return chars(*low.ranges, (0x2D, 0x2D), *high.ranges)
        if high.ranges[0][0] < low.ranges[0][0]:
            raise self._wrong("the ends of a range are in the wrong order")
        return chars((low.ranges[0][0], high.ranges[0][0]))

    def _class_char(self) -> Chars:
        char = self._text[self._at]
        self._at += 1
        if char != "\\":
            return chars((ord(char), ord(char)))
        if self._at == len(self._text):
            raise self._wrong("unclosed character class")
        if self._is_at("b"):
            self._at += 1
            return chars((8, 8))
        return self._escaped_chars()

    def _cased(self, found: Chars) -> Chars:
        if "i" not in self._flags or found.spelled:
            return found
        return chars(*found.ranges, *other_cases(found.ranges))

    def _is_at(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _take(self, text: str) -> bool:
        is_next = self._is_at(text)
        self._at += len(text) if is_next else 0
        return is_next

    def _wrong(self, what: str) -> UnsoundGrammar:
        return UnsoundGrammar(f"{what} (character {self._at} of the pattern)")


def _is_one(found: Chars) -> bool:
    return not found.spelled and len(found.ranges) == 1 and found.ranges[0][0] == found.ranges[0][1]
